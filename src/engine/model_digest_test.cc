#include "engine/model_digest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;

TEST(ModelDigest, TellsFilesApart) {
  const fs::path folder = fs::path(testing::TempDir()) / "model_digest_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  };
  std::string weights(1 << 20, 'w');
  const std::string a = write("a.gguf", weights);
  const Sha256 first = model_digest(a);
  EXPECT_EQ(model_digest(a), first);
  for (size_t i = 0; i < weights.size(); i += 1000) weights[i] = 'x';
  write("a.gguf", weights);
  EXPECT_NE(model_digest(a), first) << "other weights";

  write("config.json", "{}");
  write("notes.txt", "one");
  const Sha256 whole = model_digest(folder.string());
  write("notes.txt", "two");
  EXPECT_EQ(model_digest(folder.string()), whole) << "not the model's";
  write("config.json", "{\"a\": 1}");
  EXPECT_NE(model_digest(folder.string()), whole);
  EXPECT_NE(model_digest("dummy:a"), model_digest("dummy:b"));
}

}  // namespace
}  // namespace sluice
