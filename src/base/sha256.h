// SHA-256 (FIPS 180-4): for keys that lie hashed in a file, and for what names a block of tokens on disk.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sluice {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::string_view bytes);

}  // namespace sluice
