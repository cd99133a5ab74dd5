#include "kv/block_file.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cstring>

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[9] = "SLUICEKV";
constexpr uint32_t kVersion = 1;
constexpr size_t kLanes = 4, kKeyDigits = 32;
constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ull;

Error wrong(std::string what) { return {ErrorCode::kCorrupt, std::move(what)}; }

}  // namespace

// Each step is a bijection of the lane's state and of the word, and so is the fold of the lanes in each lane.
uint64_t block_checksum(std::span<const std::byte> bytes) {
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  const auto step = [](uint64_t& lane, uint64_t word) { lane = std::rotl((lane ^ word) * kPrime, 29); };
  size_t at = 0;
  for (; at + kLanes * 8 <= bytes.size(); at += kLanes * 8) {
    uint64_t words[kLanes];
    std::memcpy(words, bytes.data() + at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) step(lanes[i], words[i]);
  }
  for (size_t i = 0; at < bytes.size(); at += 8, ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    step(lanes[i % kLanes], word);
  }
  uint64_t sum = uint64_t(bytes.size());
  for (const uint64_t lane : lanes) sum = std::rotl((sum ^ lane) * kPrime, 31);
  return sum;
}

std::array<std::byte, kBlockHeaderBytes> encode(const BlockHeader& header) {
  std::array<std::byte, kBlockHeaderBytes> out{};
  size_t at = 0;
  const auto put = [&](const void* data, size_t bytes) {
    std::memcpy(out.data() + at, data, bytes);
    at += bytes;
  };
  const uint32_t numbers[] = {kVersion, uint32_t(header.tier), header.group, 0};
  put(kMagic, 8);
  put(numbers, sizeof(numbers));
  put(header.identity.data(), header.identity.size());
  put(header.key.data(), sizeof(header.key));
  put(&header.bytes, 8);
  put(&header.checksum, 8);
  const uint64_t own = block_checksum(std::span(out).first(at));
  put(&own, 8);
  return out;
}

Result<BlockHeader> decode_block_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kBlockHeaderBytes) return wrong("too short for a header");
  size_t at = 0;
  const auto get = [&](void* data, size_t size) {
    std::memcpy(data, bytes.data() + at, size);
    at += size;
  };
  char magic[8];
  uint32_t numbers[4];
  BlockHeader header;
  uint64_t own = 0;
  get(magic, 8);
  if (std::memcmp(magic, kMagic, 8) != 0) return wrong("not a block");
  get(numbers, sizeof(numbers));
  get(header.identity.data(), header.identity.size());
  get(header.key.data(), sizeof(header.key));
  get(&header.bytes, 8);
  get(&header.checksum, 8);
  const size_t summed = at;
  get(&own, 8);
  if (own != block_checksum(bytes.first(summed))) return wrong("the header's checksum differs");
  if (numbers[0] != kVersion) return wrong(fmt::format("version {} is not known", numbers[0]));
  if (numbers[1] >= uint32_t(kKvTiers) || numbers[3] != 0) return wrong("a tier that is not known");
  header.tier = KvTier(numbers[1]);
  header.group = numbers[2];
  return header;
}

std::string block_file_name(const BlockKey& key, int group, KvTier tier) {
  return fmt::format("{:016x}{:016x}-{}-{}.kv", key[0], key[1], group, kv_tier_name(tier));
}

std::optional<BlockFileName> parse_block_file_name(std::string_view name) {
  BlockFileName parsed;
  if (name.size() <= kKeyDigits + 1) return {};
  for (size_t i = 0; i < 2; ++i) {
    const char* first = name.data() + i * kKeyDigits / 2;
    const auto [end, error] = std::from_chars(first, first + kKeyDigits / 2, parsed.key[i], 16);
    if (error != std::errc() || end != first + kKeyDigits / 2) return {};
  }
  const char* group = name.data() + kKeyDigits + 1;
  const auto [end, error] = std::from_chars(group, name.data() + name.size(), parsed.group);
  if (error != std::errc() || parsed.group < 0) return {};
  for (int tier = 0; tier < kKvTiers; ++tier) {
    parsed.tier = KvTier(tier);
    if (block_file_name(parsed.key, parsed.group, parsed.tier) == name) return parsed;
  }
  return {};
}

}  // namespace sluice
