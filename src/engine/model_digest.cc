#include "engine/model_digest.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kParts = 64, kPartBytes = 64 << 10;

void add(std::string& text, const Sha256& digest) { text.append(digest.begin(), digest.end()); }

std::string parts_of(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  std::string text = path.filename().string() + "\n" + std::to_string(error ? 0 : size) + "\n";
  std::ifstream file(path, std::ios::binary);
  std::string part(kPartBytes, '\0');
  for (uint64_t i = 0; file && i < kParts; ++i) {
    const uint64_t at = size > kPartBytes ? (size - kPartBytes) / (kParts - 1) * i : 0;
    file.seekg(std::streamoff(at));
    file.read(part.data(), std::streamsize(part.size()));
    add(text, sha256(std::string_view(part).substr(0, size_t(file.gcount()))));
    if (size <= kPartBytes) break;
  }
  return text;
}

}  // namespace

Sha256 model_digest(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      const std::string extension = at->path().extension().string();
      if (extension == ".safetensors" || extension == ".json") files.push_back(at->path());
    }
  } else {
    files.emplace_back(path);
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) add(text, sha256(parts_of(file)));
  return sha256(text);
}

}  // namespace sluice
