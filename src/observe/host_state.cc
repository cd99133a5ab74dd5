#include "observe/host_state.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/usable_cores.h"

namespace sluice {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The numbers in the names of a folder's entries that begin with `prefix`.
std::vector<int> numbered(const char* folder, std::string_view prefix) {
  std::vector<int> numbers;
  DIR* dir = opendir(folder);
  if (dir == nullptr) return numbers;
  while (const dirent* entry = readdir(dir)) {
    const std::string_view name = entry->d_name;
    int number = 0;
    if (!name.starts_with(prefix)) continue;
    const char* end = name.data() + name.size();
    if (const auto [at, error] = std::from_chars(name.data() + prefix.size(), end, number);
        error == std::errc() && at == end)
      numbers.push_back(number);
  }
  closedir(dir);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<ThreadTimes> thread_times() {
  std::vector<ThreadTimes> threads;
  for (const int id : numbered("/proc/self/task", "")) {
    const std::string folder = "/proc/self/task/" + std::to_string(id);
    ThreadTimes t{first_line(folder + "/comm")};
    double ran = 0, waited = 0;
    if (std::istringstream(first_line(folder + "/schedstat")) >> ran >> waited >> t.turns) {
      t.ran_s = ran * 1e-9, t.waited_s = waited * 1e-9;
      threads.push_back(std::move(t));
    }
  }
  return threads;
}

double usable_cpus() {
  const double cpus = allowed_cpus(0).size(), quota = quota_cores();
  return quota > 0 ? std::min(cpus, quota) : cpus;
}

bool computes(std::string_view thread) {
  return thread.starts_with("sluice-cpu") || thread.starts_with("sluice-executor");
}

double compute_cores() {
  CpuSet cpus;
  for (const NamedThread& thread : threads_of_process())
    if (computes(thread.name)) cpus.add(allowed_cpus(thread.id));
  const double cores = cores_of(cpus), quota = quota_cores();
  return quota > 0 ? std::min(cores, quota) : cores;
}

double throttled_seconds() {
  std::ifstream in("/sys/fs/cgroup/cpu.stat");
  std::string key;
  for (double value = 0; in >> key >> value;)
    if (key == "throttled_usec") return value * 1e-6;
  return 0;
}

int node_of_cpu(int cpu) {
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
  const std::vector<int> nodes = numbered(folder.c_str(), "node");
  return nodes.empty() ? 0 : nodes[0];
}

// The core on which each thread that computes last ran: field 39 of its stat, counted behind the name's closing
// bracket.
std::vector<int> compute_nodes() {
  std::vector<int> nodes;
  for (const int id : numbered("/proc/self/task", "")) {
    const std::string line = first_line("/proc/self/task/" + std::to_string(id) + "/stat");
    const size_t name_end = line.rfind(')');
    if (name_end == std::string::npos) continue;
    const std::string_view name(line.data() + line.find('(') + 1);
    if (!computes(name)) continue;
    std::istringstream rest(line.substr(name_end + 2));
    std::string word;
    for (int field = 3; field <= 39; ++field) rest >> word;
    nodes.push_back(node_of_cpu(std::atoi(word.c_str())));
  }
  return nodes;
}

// Pages by node over all mappings ("N0=12 N1=3" in numa_maps), weighed against where the compute threads run.
double remote_share() {
  const std::vector<int> running = compute_nodes();
  if (running.empty()) return 0;
  std::vector<double> pages(64);
  std::ifstream in("/proc/self/numa_maps");
  for (std::string word; in >> word;) {
    int node = 0;
    double count = 0;
    if (std::sscanf(word.c_str(), "N%d=%lf", &node, &count) == 2 && node >= 0 && size_t(node) < pages.size())
      pages[size_t(node)] += count;
  }
  double all = 0, near = 0;
  for (size_t node = 0; node < pages.size(); ++node) {
    const auto threads = double(std::count(running.begin(), running.end(), int(node)));
    all += pages[node];
    near += pages[node] * threads / double(running.size());
  }
  return all > 0 ? 1 - near / all : 0;
}

}  // namespace

HostState read_host_state() {
  HostState state;
  state.threads = thread_times();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds_of = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  state.cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  state.major_faults = uint64_t(usage.ru_majflt);
  state.throttled_s = throttled_seconds();
  state.usable_cpus = usable_cpus();
  state.compute_cores = compute_cores();
  state.load = std::strtod(first_line("/proc/loadavg").c_str(), nullptr);
  state.nodes = std::max<int>(1, int(numbered("/sys/devices/system/node", "node").size()));
  if (state.nodes > 1) state.remote_share = remote_share();
  return state;
}

}  // namespace sluice
