// Who is let in. Entries of server.api_keys are "sha256:HEX" (the digest of a key), "NAME=sha256:HEX", or a key
// as it is; names are for fairness and metrics, never for letting anyone in. Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "server/http.h"

namespace sluice {

class ApiKeys {
 public:
  // kInvalidArgument names the entry by its place, never by its text.
  static Result<ApiKeys> create(const std::vector<std::string>& entries);

  bool empty() const { return keys_.empty(); }  // everyone is let in
  int size() const { return int(keys_.size()); }
  // Which key the request carries (Authorization: Bearer KEY, or x-api-key: KEY): 1 to size(); 0: none of them.
  // Every known digest is compared in full, so time tells nothing of how much was right.
  int find(const HttpRequest& request) const;
  // "NAME" of its entry, else "key-N". `key` from 1 to size().
  const std::string& name(int key) const { return keys_[size_t(key - 1)].name; }
  bool any_plain() const { return any_plain_; }

 private:
  struct Key {
    std::string name;
    Sha256 digest;
  };
  std::vector<Key> keys_;
  bool any_plain_ = false;
};

}  // namespace sluice
