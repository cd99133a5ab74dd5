// Prompts that a chat template made of small inputs, kept for when the same input comes again: rendering costs
// tens of microseconds, several times what else there is to do for a short request. Any thread; the lock is
// held for a copy of at most kEntryBytes.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

class RenderCache {
 public:
  static constexpr size_t kEntries = 64;
  static constexpr size_t kEntryBytes = 16 << 10;  // input and output together; larger ones are not kept

  std::optional<std::string> find(std::string_view input) const;
  void add(std::string_view input, std::string_view output);

 private:
  struct Entry {
    size_t hash = 0;
    std::string input, output;
  };
  mutable std::mutex mutex_;
  std::array<Entry, kEntries> entries_;  // guarded by mutex_
  size_t next_ = 0;                      // guarded by mutex_; the oldest, which gives way
};

}  // namespace sluice
