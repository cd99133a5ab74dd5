#include "base/cpu_set.h"

#include <dirent.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

namespace sluice {
namespace {

// The kernel's masks as arrays of words, since cpu_set_t ends at 1024 CPUs.
constexpr size_t kWordBits = 8 * sizeof(unsigned long);
using Mask = std::array<unsigned long, kMostCpus / kWordBits>;

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value >= 0 && value < kMostCpus ? std::optional(value) : std::nullopt;
}

}  // namespace

CpuSet::CpuSet(std::initializer_list<int> cpus) : CpuSet(std::vector<int>(cpus)) {}

CpuSet::CpuSet(std::vector<int> cpus) : cpus_(std::move(cpus)) {
  std::sort(cpus_.begin(), cpus_.end());
  cpus_.erase(std::unique(cpus_.begin(), cpus_.end()), cpus_.end());
}

bool CpuSet::contains(int cpu) const { return std::binary_search(begin(), end(), cpu); }

void CpuSet::add(const CpuSet& other) {
  std::vector<int> both;
  std::set_union(begin(), end(), other.begin(), other.end(), std::back_inserter(both));
  cpus_ = std::move(both);
}

CpuSet CpuSet::operator&(const CpuSet& other) const {
  CpuSet out;
  std::set_intersection(begin(), end(), other.begin(), other.end(), std::back_inserter(out.cpus_));
  return out;
}

CpuSet CpuSet::operator-(const CpuSet& other) const {
  CpuSet out;
  std::set_difference(begin(), end(), other.begin(), other.end(), std::back_inserter(out.cpus_));
  return out;
}

std::string cpu_list(const CpuSet& set) {
  std::string out;
  for (auto at = set.begin(); at != set.end();) {
    const int first = *at;
    int last = first;
    while (++at != set.end() && *at == last + 1) last = *at;
    out += fmt::format("{}{}", out.empty() ? "" : ",", first);
    if (last > first) out += fmt::format("-{}", last);
  }
  return out;
}

Result<CpuSet> parse_cpu_list(std::string_view text) {
  const Error wrong{
      ErrorCode::kInvalidArgument,
      fmt::format("must be a list of CPUs from 0 to {} such as 0-3,8, not \"{}\"", kMostCpus - 1, text)};
  std::vector<int> cpus;
  for (std::string_view rest = text; !rest.empty() || text.empty();) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const size_t dash = part.find('-');
    const auto from = number(part.substr(0, dash));
    const auto to = dash == std::string_view::npos ? from : number(part.substr(dash + 1));
    if (!from || !to || *to < *from || comma == rest.size() - 1) return wrong;
    for (int cpu = *from; cpu <= *to; ++cpu) cpus.push_back(cpu);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return CpuSet(std::move(cpus));
}

CpuSet allowed_cpus(int id) {
  Mask mask{};
  std::vector<int> cpus;
  const long bytes = syscall(SYS_sched_getaffinity, id, sizeof mask, mask.data());
  for (int cpu = 0; cpu < int(bytes) * 8; ++cpu)
    if (mask[size_t(cpu) / kWordBits] >> (size_t(cpu) % kWordBits) & 1) cpus.push_back(cpu);
  return CpuSet(std::move(cpus));
}

Status bind_thread(int id, const CpuSet& set) {
  Mask mask{};
  for (const int cpu : set) mask[size_t(cpu) / kWordBits] |= 1ul << (size_t(cpu) % kWordBits);
  if (syscall(SYS_sched_setaffinity, id, sizeof mask, mask.data()) != 0)
    return Error{ErrorCode::kUnsupported,
                 fmt::format("it may not be bound to CPUs {} ({})", cpu_list(set), std::strerror(errno))};
  const CpuSet applied = allowed_cpus(id);
  if (applied == set) return {};
  return Error{ErrorCode::kUnsupported, fmt::format("it was to be bound to CPUs {}, and the kernel made it {}",
                                                    cpu_list(set), cpu_list(applied))};
}

Status interleave_memory(const std::vector<int>& nodes) {
  constexpr int kMostNodes = 1024;
  std::array<unsigned long, kMostNodes / kWordBits> mask{};
  for (const int node : nodes)
    if (node < kMostNodes) mask[size_t(node) / kWordBits] |= 1ul << (size_t(node) % kWordBits);
  const bool usual = nodes.empty();
  if (syscall(SYS_set_mempolicy, usual ? MPOL_DEFAULT : MPOL_INTERLEAVE, usual ? nullptr : mask.data(),
              usual ? 0 : kMostNodes) == 0)
    return {};
  return Error{ErrorCode::kUnsupported,
               fmt::format("memory may not be spread over the nodes ({})", std::strerror(errno))};
}

std::vector<NamedThread> threads_of_process() {
  std::vector<NamedThread> threads;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/task"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    NamedThread thread{std::atoi(entry->d_name), {}};
    std::ifstream in(fmt::format("/proc/self/task/{}/comm", entry->d_name));
    if (thread.id > 0 && std::getline(in, thread.name)) threads.push_back(std::move(thread));
  }
  return threads;
}

}  // namespace sluice
