// The header of a block's file, and its name: whatever is taken is written again as it was read.
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "kv/block_file.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto header = decode_block_header(bytes)) {
    const auto again = encode(*header);
    CHECK(std::memcmp(again.data(), data, again.size()) == 0, "a header that is written otherwise");
  }
  const std::string_view name(reinterpret_cast<const char*>(data), size);
  if (const auto parsed = parse_block_file_name(name))
    CHECK(block_file_name(parsed->key, parsed->group, parsed->tier) == name);
  return 0;
}
