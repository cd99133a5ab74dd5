// A set of CPUs (hardware threads) as the kernel numbers them, and what threads may run on.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

// A value; in ascending order, none twice.
class CpuSet {
 public:
  CpuSet() = default;
  CpuSet(std::initializer_list<int> cpus);
  explicit CpuSet(std::vector<int> cpus);

  bool empty() const { return cpus_.empty(); }
  int size() const { return int(cpus_.size()); }
  int first() const { return cpus_.front(); }
  bool contains(int cpu) const;
  auto begin() const { return cpus_.begin(); }
  auto end() const { return cpus_.end(); }
  bool operator==(const CpuSet&) const = default;

  void add(const CpuSet& other);
  CpuSet operator&(const CpuSet& other) const;
  CpuSet operator-(const CpuSet& other) const;

 private:
  std::vector<int> cpus_;
};

// "0-3,8", as taskset, numactl and the kernel write it.
std::string cpu_list(const CpuSet& set);
// Errors: not such a list, or a CPU beyond kMostCpus.
inline constexpr int kMostCpus = 4096;
Result<CpuSet> parse_cpu_list(std::string_view text);

// What thread `id` of this process may run on; 0: the calling one. Empty where the kernel does not say.
CpuSet allowed_cpus(int id);
// Has the kernel run thread `id` there alone, and asks it whether it does: a container may refuse, or cut the
// set to its own. Threads that the thread starts later inherit it. Errors say what the kernel said.
Status bind_thread(int id, const CpuSet& set);

// New pages of the calling thread, and of threads that it starts later, go to these memory nodes in turn; none:
// to the node that the thread runs on, as usual. Errors say what the kernel said.
Status interleave_memory(const std::vector<int>& nodes);

// The threads of this process, by the kernel's numbers.
struct NamedThread {
  int id = 0;
  std::string name;
};
std::vector<NamedThread> threads_of_process();

}  // namespace sluice
