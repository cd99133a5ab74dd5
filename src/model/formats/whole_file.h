// Files that appear only when whole: written under another name, brought to the disk, then renamed.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace sluice {

// `pieces` one after the other as the file `path`; an older one is replaced. Errors (kIo) name the file and
// what the system said; nothing is left behind then.
Status write_whole_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);
Status write_whole_file(const std::string& path, std::string_view text);

}  // namespace sluice
