#include "model/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/formats/gguf_builder.h"

namespace sluice {
namespace {

using testing::HasSubstr;

std::span<const std::byte> span_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

std::string error_of(const std::string& bytes) {
  Result<std::unique_ptr<GgufFile>> r = GgufFile::parse(span_of(bytes), "m.gguf");
  return r ? "" : r.error().message;
}

// Section R of the shared cases: hostile files, each refused with one line that names what is wrong.
std::vector<std::pair<std::string, std::string>> hostile_files(const std::string& id) {
  std::ifstream in(SLUICE_SOURCE_DIR "/../shared/cases/http/cases.jsonl");
  std::vector<std::pair<std::string, std::string>> out;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json item = nlohmann::json::parse(line);
    if (item.at("id") != id) continue;
    for (const auto& input : item.at("input")) {
      if (input.at("do") != "file") continue;
      const std::string hex = input.at("hex");
      std::string bytes;
      for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += char(std::stoi(hex.substr(i, 2), nullptr, 16));
      out.emplace_back(input.at("name"), bytes);
    }
  }
  return out;
}

struct Hostile {
  const char* id;
  size_t files;
  const char* named;  // what every message of the case names, beyond the file
};

class HostileGguf : public testing::TestWithParam<Hostile> {};

TEST_P(HostileGguf, IsRefusedInOneLine) {
  const auto files = hostile_files(GetParam().id);
  ASSERT_EQ(files.size(), GetParam().files);
  for (const auto& [name, bytes] : files) {
    // A copy of the exact size on the heap: a read beyond it is seen by ASan.
    const std::vector<std::byte> exact(span_of(bytes).begin(), span_of(bytes).end());
    Result<std::unique_ptr<GgufFile>> r = GgufFile::parse(exact, "dir/" + name);
    ASSERT_FALSE(r.ok()) << name;
    EXPECT_EQ(r.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(r.error().message, HasSubstr("dir/" + name));
    EXPECT_THAT(r.error().message, HasSubstr(GetParam().named)) << name;
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
    EXPECT_LT(r.error().message.size(), 300u);
    EXPECT_THAT(r.error().message, testing::ContainsRegex("download|convert|give a"));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, HostileGguf,
                         testing::Values(Hostile{"R01", 9, ""}, Hostile{"R03", 6, "key '"},
                                         Hostile{"R04", 5, "key 'general.alignment'"},
                                         Hostile{"R05", 15, "tensor"}),
                         [](const auto& info) { return info.param.id; });

GgufBuilder sample() {
  GgufBuilder b;
  b.text("general.architecture", "llama").u32("llama.block_count", 2).f32("eps", 0.5f);
  b.key("yes", 7, uint8_t(1)).key("big", 10, uint64_t(1) << 40).key("minus", 11, int64_t(-3));
  b.texts("words", {"a", "", "longer"}).array<float>("scores", 6, {1, 2, 3}).array<uint8_t>("flags", 7, {1, 0});
  b.tensor_f32("a", {2, 3}, {1, 2, 3, 4, 5, 6}).tensor_f32("b", {4}, {7, 8, 9, 10});
  return b;
}

TEST(Gguf, ReadsValuesAndTensors) {
  for (uint32_t version : {2u, 3u}) {
    const std::string bytes = sample().bytes(version);
    auto r = GgufFile::parse(span_of(bytes), "m.gguf");
    ASSERT_TRUE(r.ok()) << r.error().message;
    const GgufFile& f = **r;
    EXPECT_EQ(f.version(), int(version));
    EXPECT_EQ(f.string("general.architecture"), "llama");
    EXPECT_EQ(f.number("llama.block_count"), 2);
    EXPECT_EQ(f.number("eps"), 0.5);
    EXPECT_EQ(f.number("big"), double(1ull << 40));
    EXPECT_EQ(f.number("minus"), -3);
    EXPECT_EQ(f.boolean("yes"), true);
    EXPECT_EQ(f.number("yes"), std::nullopt);
    EXPECT_EQ(f.string("eps"), std::nullopt);
    EXPECT_EQ(f.number("absent"), std::nullopt);
    EXPECT_THAT(f.strings("words"), testing::ElementsAre("a", "", "longer"));
    EXPECT_THAT(f.numbers("scores"), testing::ElementsAre(1, 2, 3));
    EXPECT_THAT(f.numbers("flags"), testing::ElementsAre(1, 0));
    EXPECT_EQ(f.array_size("words"), 3u);
    EXPECT_TRUE(f.strings("scores").empty());
    ASSERT_EQ(f.tensors().size(), 2u);
    const GgufTensor* a = f.tensor("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->rows(), 3);
    EXPECT_EQ(a->cols(), 2);
    EXPECT_EQ(a->data.size(), 24u);
    EXPECT_EQ(f.tensor("c"), nullptr);
  }
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string bytes = sample().bytes();
  for (size_t n = 0; n + 16 < bytes.size(); n++) {  // the last tensor ends 16 bytes before the end
    const std::vector<std::byte> cut(span_of(bytes).begin(), span_of(bytes).begin() + ptrdiff_t(n));
    EXPECT_FALSE(GgufFile::parse(cut, "m.gguf").ok()) << n;
  }
}

TEST(Gguf, NamesWhatIsWrong) {
  EXPECT_THAT(error_of(GgufBuilder().u32("twice", 1).u32("twice", 1).bytes()),
              HasSubstr("key 'twice' stands twice"));
  EXPECT_THAT(error_of(GgufBuilder().u32("split.count", 3).bytes()), HasSubstr("one of 3 parts"));
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(error_of("<!DOCTYPE html><html>"), HasSubstr("HTML"));
  EXPECT_THAT(error_of(GgufBuilder().bytes(1)), HasSubstr("version 1"));
  EXPECT_THAT(error_of(GgufBuilder().bytes(4)), HasSubstr("newer"));
  EXPECT_THAT(error_of(GgufBuilder().tensor("bad\nname", {3}, 2, "").bytes()), HasSubstr("'bad\\x0aname'"));
  EXPECT_EQ(error_of(GgufBuilder().bytes()), "");
}

TEST(Gguf, OpensARealModel) {
  auto r = GgufFile::open(SLUICE_SOURCE_DIR "/models/gemma-3-270m-q4_k_m.gguf");
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ((*r)->string("general.architecture"), "gemma3");
  EXPECT_EQ((*r)->strings("tokenizer.ggml.tokens").size(), 262144u);
  EXPECT_EQ((*r)->tensors().size(), 236u);
  EXPECT_EQ(GgufFile::open("/no/such.gguf").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace sluice
