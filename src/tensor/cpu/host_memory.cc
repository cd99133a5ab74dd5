#include "tensor/cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace sluice::cpu {
namespace {

constexpr size_t kHugePage = size_t(2) << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The value after `key` in a file of "key: value" or "key value" lines; all of the first line for an empty key.
std::string find_value(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t at = line.find_first_not_of(" \t:", key.size());
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

size_t number_in(const char* path, const std::string& key, size_t otherwise) {
  const std::string text = find_value(path, key);
  char* end = nullptr;
  const unsigned long long n = std::strtoull(text.c_str(), &end, 10);
  return end == text.c_str() ? otherwise : size_t(n);
}

}  // namespace

void* allocate_zeroed(size_t bytes) {
  if (bytes < kHugeBytes) {
    const size_t size = round_up(std::max<size_t>(bytes, 1), 64);
    void* p = std::aligned_alloc(64, size);
    if (p) std::memset(p, 0, size);
    return p;
  }
  // Aligned by asking for one huge page more and giving back the ends.
  const size_t size = round_up(bytes, kHugePage);
  if (size < bytes) return nullptr;
  void* raw = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(raw), aligned = round_up(begin, kHugePage);
  if (aligned > begin) munmap(raw, aligned - begin);
  if (const size_t rest = begin + kHugePage - aligned) munmap(reinterpret_cast<void*>(aligned + size), rest);
  void* p = reinterpret_cast<void*>(aligned);
  madvise(p, size, MADV_HUGEPAGE);
  return p;
}

void release(void* data, size_t bytes) {
  if (bytes < kHugeBytes) {
    std::free(data);
  } else {
    munmap(data, round_up(bytes, kHugePage));
  }
}

size_t available_memory_bytes() {
  constexpr size_t kNone = SIZE_MAX;
  size_t available = number_in("/proc/meminfo", "MemAvailable", 0) * 1024;
  const size_t limit2 = number_in("/sys/fs/cgroup/memory.max", "", kNone);
  const size_t used2 = number_in("/sys/fs/cgroup/memory.current", "", 0);
  const size_t limit1 = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", kNone);
  const size_t used1 = number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", "", 0);
  if (limit2 != kNone) available = std::min(available, limit2 > used2 ? limit2 - used2 : 0);
  if (limit1 != kNone) available = std::min(available, limit1 > used1 ? limit1 - used1 : 0);
  return available;
}

std::string cpu_name() {
  const std::string name = find_value("/proc/cpuinfo", "model name");
  return name.empty() ? "CPU" : name;
}

}  // namespace sluice::cpu
