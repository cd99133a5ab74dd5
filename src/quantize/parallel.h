// Work over rows that are independent of each other, on threads that live as long as the call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace sluice::quantize {

// Calls `work(begin, end)` for parts of 0 .. count, one per thread. What a row becomes may not depend on the
// parts.
inline void parallel_rows(int threads, int64_t count, const std::function<void(int64_t, int64_t)>& work) {
  const int64_t parts = std::clamp<int64_t>(threads, 1, std::max<int64_t>(count, 1));
  std::vector<std::jthread> others;
  for (int64_t p = 1; p < parts; p++)
    others.emplace_back([&, p] { work(count * p / parts, count * (p + 1) / parts); });
  work(0, count / parts);
}

}  // namespace sluice::quantize
