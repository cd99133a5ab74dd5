#include "model/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/formats/folder.h"

namespace sluice {
namespace {

using testing::HasSubstr;

std::string file_bytes(const std::string& header, size_t data_bytes) {
  std::string out(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  return out + header + std::string(data_bytes, 'x');
}

std::string error_of(const std::string& bytes) {
  const std::vector<std::byte> exact(reinterpret_cast<const std::byte*>(bytes.data()),
                                     reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
  const auto r = parse_safetensors(exact, "s");
  return r ? "" : r.error().message;
}

std::string entry(const char* name, const char* dtype, const char* shape, const char* offsets) {
  return std::string("\"") + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsTensors) {
  const std::string bytes =
      file_bytes("{\"__metadata__\":{\"format\":\"pt\"}," + entry("a", "F32", "[2,3]", "[0,24]") + "," +
                     entry("b", "BF16", "[]", "[24,26]") + "}",
                 26);
  const auto r = parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "s");
  ASSERT_TRUE(r.ok()) << r.error().message;
  ASSERT_EQ(r->size(), 2u);
  EXPECT_EQ((*r)[0].name, "a");
  EXPECT_THAT((*r)[0].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ((*r)[0].data.size(), 24u);
  EXPECT_EQ((*r)[1].type, "BF16");
  EXPECT_EQ(reinterpret_cast<const char*>((*r)[1].data.data()), bytes.data() + bytes.size() - 2);
}

TEST(Safetensors, RefusesWithTheReason) {
  const std::string a = entry("a", "F32", "[1]", "[0,4]");
  EXPECT_THAT(error_of(""), HasSubstr("first eight bytes"));
  EXPECT_THAT(error_of(std::string(8, '\xff')), HasSubstr("header length"));
  EXPECT_THAT(error_of(file_bytes("{" + a + "}", 4).substr(0, 20)), HasSubstr("truncated"));
  EXPECT_THAT(error_of(file_bytes("{]", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of(file_bytes("[]", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of(file_bytes("{" + a + "}", 3)), HasSubstr("tensor 'a'"));
  EXPECT_THAT(error_of(file_bytes("{" + a + "}", 9)), HasSubstr("5 bytes at its end"));
  EXPECT_THAT(error_of(file_bytes("{" + a + "," + a + "}", 4)), HasSubstr("'a' stands twice"));
  EXPECT_THAT(error_of(file_bytes("{" + a + "," + entry("b", "F32", "[1]", "[0,4]") + "}", 4)),
              HasSubstr("overlaps"));
  EXPECT_THAT(error_of(file_bytes("{" + a + "," + entry("b", "F32", "[1]", "[8,12]") + "}", 12)),
              HasSubstr("gap"));
  EXPECT_THAT(error_of(file_bytes("{" + entry("a", "F32", "[4611686018427387904,4]", "[0,4]") + "}", 4)),
              HasSubstr("ask for"));
  EXPECT_THAT(error_of(file_bytes("{" + entry("a", "F32", "[-1]", "[0,4]") + "}", 4)),
              HasSubstr("natural number"));
  EXPECT_THAT(error_of(file_bytes("{" + entry("a", "F31", "[1]", "[0,4]") + "}", 4)),
              HasSubstr("unknown dtype 'F31'"));
  EXPECT_THAT(error_of(file_bytes("{" + entry("a", "F32", "[1]", "[4,0]") + "}", 4)), HasSubstr("beyond"));
  EXPECT_THAT(error_of(file_bytes("{" + entry("a", "F32", "[1]", "[0]") + "}", 4)), HasSubstr("beyond"));
  EXPECT_THAT(error_of(file_bytes("{" + entry("a", "F32", "[1]", "[0,1,2]") + "}", 4)),
              HasSubstr("two numbers"));
  EXPECT_THAT(error_of(file_bytes("{\"a\":3}", 4)), HasSubstr("dtype, shape and data_offsets"));
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
              HasSubstr("git lfs pull"));
}

TEST(PlainName, StaysInItsFolder) {
  EXPECT_TRUE(plain_name("model-00001-of-00002.safetensors"));
  for (const char* name : {"", ".", "..", "../x", "a/b", "/etc/passwd"}) EXPECT_FALSE(plain_name(name)) << name;
}

}  // namespace
}  // namespace sluice
