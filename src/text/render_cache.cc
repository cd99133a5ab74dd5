#include "text/render_cache.h"

#include <functional>

namespace sluice {

std::optional<std::string> RenderCache::find(std::string_view input) const {
  if (input.size() > kEntryBytes) return std::nullopt;
  const size_t hash = std::hash<std::string_view>()(input);
  std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.hash == hash && entry.input == input) return entry.output;
  return std::nullopt;
}

void RenderCache::add(std::string_view input, std::string_view output) {
  if (input.size() + output.size() > kEntryBytes) return;
  Entry made{std::hash<std::string_view>()(input), std::string(input), std::string(output)};
  std::lock_guard lock(mutex_);
  std::swap(entries_[next_], made);
  next_ = (next_ + 1) % kEntries;
}

}  // namespace sluice
