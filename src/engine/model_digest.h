// What tells a model's files from others, in a fraction of a second whatever their size.
#pragma once

#include <string>

#include "base/sha256.h"

namespace sluice {

// Of a .gguf file, or of a folder's weights and settings: names, sizes, and parts of each file, its beginning
// among them. Models that differ in all weights differ here; a file that was changed in a few bytes by hand may
// not. A file that cannot be read counts as its name.
Sha256 model_digest(const std::string& path);

}  // namespace sluice
