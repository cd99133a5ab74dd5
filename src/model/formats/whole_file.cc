#include "model/formats/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sluice {
namespace {

bool write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(size_t(n));
  }
  return true;
}

}  // namespace

Status write_whole_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
  const std::string unfinished = path + ".unfinished";
  const int file = ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool good = file >= 0;
  for (const auto& piece : pieces) good = good && write_all(file, piece);
  good = good && ::fsync(file) == 0;
  int error = errno;
  if (file >= 0 && ::close(file) != 0 && good) good = false, error = errno;
  if (good && std::rename(unfinished.c_str(), path.c_str()) != 0) good = false, error = errno;
  if (good) return {};
  ::unlink(unfinished.c_str());
  return Error{ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(error))};
}

Status write_whole_file(const std::string& path, std::string_view text) {
  const std::array pieces = {std::as_bytes(std::span(text))};
  return write_whole_file(path, pieces);
}

}  // namespace sluice
