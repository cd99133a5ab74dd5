// Answers of the Responses API that their clients asked to keep: in memory, up to a number of bytes, the oldest
// go first. Each belongs to the key that made it; no other key sees it. Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace sluice {

struct StoredResponse {
  std::string response;  // the response object, JSON
  std::string messages;  // elements of the conversation up to and with its output, as templates read them, JSON
  bool has_calls = false;  // `messages` hold calls of tools, or their results
};

class ResponseStore {
 public:
  explicit ResponseStore(size_t limit_bytes) : limit_(limit_bytes) {}

  // One that is larger than the limit is not kept.
  void put(const std::string& id, uint32_t owner, StoredResponse response);
  // Null: there is none of that id that belongs to `owner`.
  std::shared_ptr<const StoredResponse> find(std::string_view id, uint32_t owner);
  bool erase(std::string_view id, uint32_t owner);
  size_t bytes();

 private:
  struct Entry {
    std::string id;
    uint32_t owner;
    size_t bytes;
    std::shared_ptr<const StoredResponse> response;
  };
  using Entries = std::list<Entry>;
  void drop(Entries::iterator entry);  // with mutex_ held

  const size_t limit_;
  std::mutex mutex_;
  Entries entries_;                                                // oldest first; guarded by mutex_
  std::unordered_map<std::string_view, Entries::iterator> by_id_;  // views of Entry::id; guarded by mutex_
  size_t bytes_ = 0;                                               // guarded by mutex_
};

}  // namespace sluice
