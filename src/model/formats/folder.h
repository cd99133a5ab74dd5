// Files of a Hugging Face folder.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

// True for a name that stays in its folder: not empty, no separator, not "." or "..". Links are followed,
// because the hub's own cache consists of them; a name out of a file can only choose among what the folder's
// owner put there.
bool plain_name(std::string_view name);

// Reads folder/name whole. Errors: kNotFound if absent, kTooLarge beyond `max_bytes` (checked before reading),
// kCorrupt for a Git LFS pointer, kIo otherwise.
Result<std::string> read_folder_file(const std::string& folder, std::string_view name, size_t max_bytes);

}  // namespace sluice
