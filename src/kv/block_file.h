// A block of the cache as a file: a header that says what it is, with checksums, then the block's bytes as they
// lie in the pool. Files are taken for what they say only if all of it is right: they may be cut short, rot, or
// be of another model or another build.
//
// Little-endian: "SLUICEKV", u32 version, u32 tier, u32 group, u32 zero, identity [32], key [16], u64 bytes,
// u64 checksum of the bytes, u64 checksum of all before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/sha256.h"
#include "kv/block_key.h"
#include "tensor/kv_tier.h"

namespace sluice {

inline constexpr size_t kBlockHeaderBytes = 96;

struct BlockHeader {
  KvTier tier = KvTier::full;
  uint32_t group = 0;
  Sha256 identity{};  // of model, geometry and layout: whose blocks these are
  BlockKey key{};
  uint64_t bytes = 0;
  uint64_t checksum = 0;

  bool operator==(const BlockHeader&) const = default;
};

// Any change of one 64-bit word, or of a run that falls into one of four interleaved lanes, changes it; others
// pass once in 2^64.
uint64_t block_checksum(std::span<const std::byte> bytes);

std::array<std::byte, kBlockHeaderBytes> encode(const BlockHeader& header);
// Errors: what is wrong with it.
Result<BlockHeader> decode_block_header(std::span<const std::byte> bytes);

// Behind the name of a file that is being written.
inline constexpr const char* kUnfinishedBlock = ".new";
// "<key>-<group>-<tier>.kv", in hexadecimal, decimal and as the tier is named.
std::string block_file_name(const BlockKey& key, int group, KvTier tier);
struct BlockFileName {
  BlockKey key{};
  int group = 0;
  KvTier tier = KvTier::full;
};
std::optional<BlockFileName> parse_block_file_name(std::string_view name);

}  // namespace sluice
