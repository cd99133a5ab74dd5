#include "kv/block_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sluice {
namespace {

using testing::HasSubstr;

BlockHeader some_header() {
  BlockHeader header{.tier = KvTier::int4, .group = 3, .key = {0x0123456789abcdefull, 42}, .bytes = 1000};
  header.identity.fill(7);
  header.checksum = 99;
  return header;
}

TEST(BlockFile, AHeaderIsReadAsItWasWritten) {
  const auto bytes = encode(some_header());
  const auto read = decode_block_header(bytes);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, some_header());
}

TEST(BlockFile, AnyChangedByteOfTheHeaderIsFound) {
  for (size_t i = 0; i < kBlockHeaderBytes; ++i) {
    auto bytes = encode(some_header());
    bytes[i] ^= std::byte(0x10);
    EXPECT_FALSE(decode_block_header(bytes)) << "byte " << i;
  }
  const auto bytes = encode(some_header());
  EXPECT_THAT(decode_block_header(std::span(bytes).first(kBlockHeaderBytes - 1)).error().message,
              HasSubstr("too short"));
}

TEST(BlockFile, AnyChangedByteOfTheContentIsFound) {
  std::vector<std::byte> content(1003);
  for (size_t i = 0; i < content.size(); ++i) content[i] = std::byte(i * 7);
  const uint64_t right = block_checksum(content);
  for (size_t i = 0; i < content.size(); ++i) {
    content[i] ^= std::byte(1);
    EXPECT_NE(block_checksum(content), right) << "byte " << i;
    content[i] ^= std::byte(1);
  }
  EXPECT_NE(block_checksum(std::span(content).first(1002)), right);
  std::swap_ranges(content.begin(), content.begin() + 8, content.begin() + 32);
  EXPECT_NE(block_checksum(content), right) << "words of one lane changed places";
}

TEST(BlockFile, ANameSaysWhatIsInIt) {
  const BlockKey key = {0x0123456789abcdefull, 5};
  const std::string name = block_file_name(key, 12, KvTier::int8);
  EXPECT_EQ(name, "0123456789abcdef0000000000000005-12-int8.kv");
  const auto parsed = parse_block_file_name(name);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->key, key);
  EXPECT_EQ(parsed->group, 12);
  EXPECT_EQ(parsed->tier, KvTier::int8);
  for (const char* other :
       {"", "x", "0123456789abcdef0000000000000005", "0123456789abcdef0000000000000005-",
        "0123456789abcdef0000000000000005-12-int8.kv.new", "0123456789ABCDEF0000000000000005-1-int8.kv",
        "0123456789abcdef0000000000000005-+1-int8.kv", "0123456789abcdef0000000000000005-1-int3.kv"})
    EXPECT_FALSE(parse_block_file_name(other)) << other;
}

}  // namespace
}  // namespace sluice
