// What names the content of a block outside the pool: a chain of SHA-256 over a salt and all tokens up to the
// block's end. Equal names are taken for equal content, with nothing else compared, so the digest must be one
// that nobody can find two texts for. 128 bits of it are kept.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

using PrefixSalt = std::array<uint64_t, 2>;
using BlockKey = std::array<uint64_t, 2>;
inline constexpr BlockKey kNoBlockKey = {};

BlockKey root_key(const PrefixSalt& salt);
BlockKey next_key(const BlockKey& parent, std::span<const int32_t> tokens);

// Appends the keys of whole blocks of `ids` that are not there yet. Takes about 2 µs for 64 tokens, so prompts
// have it done by their client's thread.
void extend_keys(std::vector<BlockKey>& keys, std::span<const int32_t> ids, const PrefixSalt& salt,
                 int block_tokens);

}  // namespace sluice
