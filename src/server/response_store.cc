#include "server/response_store.h"

namespace sluice {

void ResponseStore::put(const std::string& id, uint32_t owner, StoredResponse response) {
  const size_t bytes = 2 * id.size() + response.response.size() + response.messages.size() + sizeof(Entry);
  if (bytes > limit_) return;
  auto shared = std::make_shared<const StoredResponse>(std::move(response));
  std::lock_guard lock(mutex_);
  while (bytes_ + bytes > limit_) drop(entries_.begin());
  entries_.push_back({id, owner, bytes, std::move(shared)});
  by_id_.emplace(entries_.back().id, std::prev(entries_.end()));
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(std::string_view id, uint32_t owner) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return nullptr;
  return found->second->response;
}

bool ResponseStore::erase(std::string_view id, uint32_t owner) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return false;
  drop(found->second);
  return true;
}

size_t ResponseStore::bytes() {
  std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::drop(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace sluice
