#include "model/formats/folder.h"

#include <fmt/format.h>

#include "base/mapped_file.h"
#include "model/formats/shown.h"

namespace sluice {

bool plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

Result<std::string> read_folder_file(const std::string& folder, std::string_view name, size_t max_bytes) {
  if (!plain_name(name)) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: {} is no name of a file in this folder", folder, shown(name))};
  }
  const std::string path = fmt::format("{}/{}", folder, name);
  Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.error();
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.size() > max_bytes) {
    return Error{ErrorCode::kTooLarge, fmt::format("{}: {} bytes, more than the {} that such a file may have",
                                                   path, bytes.size(), max_bytes)};
  }
  if (std::string mistake = mistaken_file(bytes); !mistake.empty()) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: this is {}", path, mistake)};
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace sluice
