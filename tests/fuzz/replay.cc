// Runs a fuzz target over the files of a corpus, and over cut and bit-flipped variants of each, without
// libFuzzer: the regression run of ./dev test. Usage: fuzz_X CORPUS_DIR_OR_FILE...
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void run_variants(const std::vector<uint8_t>& seed, std::mt19937& rng) {
  LLVMFuzzerTestOneInput(seed.data(), seed.size());
  if (seed.empty()) return;
  for (int i = 0; i < 64; ++i) {
    // A fresh heap block per variant, so that ASan sees a read one byte past the end.
    std::vector<uint8_t> cut(seed.begin(), seed.begin() + rng() % seed.size());
    cut.shrink_to_fit();
    LLVMFuzzerTestOneInput(cut.data(), cut.size());
    std::vector<uint8_t> flipped = seed;
    for (unsigned n = 1 + rng() % 4; n > 0; --n) flipped[rng() % flipped.size()] ^= uint8_t(1u << (rng() % 8));
    LLVMFuzzerTestOneInput(flipped.data(), flipped.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 rng(20261130);
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::filesystem::path> paths;
    if (std::filesystem::is_directory(argv[i])) {
      for (auto& e : std::filesystem::directory_iterator(argv[i])) paths.push_back(e.path());
    } else {
      paths.push_back(argv[i]);
    }
    for (const auto& path : paths) {
      std::ifstream in(path, std::ios::binary);
      std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(in)), {});
      run_variants(bytes, rng);
      ++files;
    }
  }
  std::printf("replayed %d corpus files\n", files);
  return files > 0 ? 0 : 1;  // an empty corpus tests nothing
}
