#include "base/usable_cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace sluice {
namespace {

std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Cores that one cgroup folder's quota pays for; infinity without one.
double quota_in(const std::string& folder) {
  double quota = 0, period = 0;
  std::istringstream v2(read_line(folder + "/cpu.max"));
  if (v2 >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::istringstream v1(read_line(folder + "/cpu.cfs_quota_us") + " " +
                        read_line(folder + "/cpu.cfs_period_us"));
  if (v1 >> quota >> period && quota > 0 && period > 0) return quota / period;
  return INFINITY;
}

// The tightest quota from this process's cgroup up to the root. Inside a container the path in /proc may not
// exist below the mount point; then the mount point itself is the container's group.
double tightest_quota() {
  double cores = INFINITY;
  for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    cores = std::min(cores, quota_in(root));
  }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers.find("cpu") == std::string::npos) continue;
    const std::string root = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controllers;
    for (std::string path = line.substr(second + 1); path.size() > 1; path.resize(path.rfind('/'))) {
      cores = std::min(cores, quota_in(root + path));
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return cores;
}

}  // namespace

double quota_cores() {
  const double cores = tightest_quota();
  return std::isinf(cores) ? 0 : cores;
}

int cores_of(const CpuSet& cpus) {
  std::set<std::string> cores;  // named by their list of siblings, which is the same for all threads of a core
  for (const int cpu : cpus) {
    const std::string siblings =
        read_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? "cpu" + std::to_string(cpu) : siblings);
  }
  return int(cores.size());
}

int usable_cores() {
  const int cores = std::max(1, cores_of(allowed_cpus(0)));
  const double quota = tightest_quota();
  return quota < cores ? std::max(1, int(std::floor(quota + 0.01))) : cores;
}

}  // namespace sluice
