#include "engine/disk_folders.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "kv/block_file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr size_t kDigits = 12;

bool is_folder_name(const std::string& name) {
  return name.size() == kDigits && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// A block, or one that was being written.
bool is_block(const std::string& name) {
  const size_t end =
      name.ends_with(kUnfinishedBlock) ? name.size() - std::strlen(kUnfinishedBlock) : name.size();
  return parse_block_file_name(name.substr(0, end)).has_value();
}

template <typename F>
void for_each_block(const fs::path& folder, const F& f) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (is_block(at->path().filename().string())) f(*at);
}

struct Folder {
  fs::path path;
  fs::file_time_type used;
  size_t bytes = 0;
};

size_t bytes_of(const fs::path& folder) {
  size_t bytes = 0;
  for_each_block(folder, [&](const fs::directory_entry& file) {
    std::error_code gone;
    const auto size = file.file_size(gone);
    if (!gone) bytes += size;
  });
  return bytes;
}

// False: a server has it open, or it is not to be removed.
bool remove_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  std::error_code error;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
    for_each_block(folder, [](const fs::directory_entry& file) {
      std::error_code gone;
      fs::remove(file.path(), gone);
    });
    fs::remove(folder, error);
  } else {
    error = std::make_error_code(std::errc::device_or_resource_busy);
  }
  ::close(fd);
  return !error;
}

}  // namespace

std::string disk_folder_name(const Sha256& identity) {
  std::string name;
  for (size_t i = 0; i < kDigits / 2; ++i) name += fmt::format("{:02x}", identity[i]);
  return name;
}

OpenFolder::OpenFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) return;
  flock(fd_, LOCK_SH | LOCK_NB);  // where a file system has no locks, nothing is lost but this
  futimens(fd_, nullptr);
}

OpenFolder::~OpenFolder() {
  if (fd_ >= 0) ::close(fd_);
}

int remove_old_folders(const std::string& path, const std::string& own, size_t most_bytes) {
  std::vector<Folder> others;
  size_t bytes = bytes_of(fs::path(path) / own);
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code gone;
    if (name == own || !is_folder_name(name) || !at->is_directory(gone) || at->is_symlink(gone)) continue;
    others.push_back({at->path(), at->last_write_time(gone), bytes_of(at->path())});
    bytes += others.back().bytes;
  }
  std::ranges::sort(others, {}, &Folder::used);
  int removed = 0;
  for (const Folder& folder : others) {
    if (bytes <= most_bytes) break;
    if (!remove_folder(folder.path)) continue;
    bytes -= folder.bytes;
    ++removed;
  }
  return removed;
}

}  // namespace sluice
