#include "kv/block_key.h"

#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/sha256.h"

namespace sluice {
namespace {

constexpr size_t kMostTokens = 256;  // of a block

BlockKey shortened(const Sha256& digest) {
  BlockKey key;
  std::memcpy(key.data(), digest.data(), sizeof(key));
  return key;
}

}  // namespace

BlockKey root_key(const PrefixSalt& salt) {
  return shortened(sha256({reinterpret_cast<const char*>(salt.data()), sizeof(salt)}));
}

BlockKey next_key(const BlockKey& parent, std::span<const int32_t> tokens) {
  CHECK(tokens.size() <= kMostTokens);
  char text[sizeof(BlockKey) + kMostTokens * sizeof(int32_t)];
  std::memcpy(text, parent.data(), sizeof(parent));
  std::memcpy(text + sizeof(parent), tokens.data(), tokens.size_bytes());
  return shortened(sha256({text, sizeof(parent) + tokens.size_bytes()}));
}

void extend_keys(std::vector<BlockKey>& keys, std::span<const int32_t> ids, const PrefixSalt& salt,
                 int block_tokens) {
  const size_t bt = size_t(block_tokens);
  while ((keys.size() + 1) * bt <= ids.size())
    keys.push_back(next_key(keys.empty() ? root_key(salt) : keys.back(), ids.subspan(keys.size() * bt, bt)));
}

}  // namespace sluice
