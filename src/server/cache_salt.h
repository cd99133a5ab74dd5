// The client's `cache_salt`: a word that keeps its cached prefixes from everybody who does not know it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sluice {

// What the engine is told instead of the word: a 128-bit digest under a secret of this process, so that nobody
// can look for two words with the same one. Zeros for the empty word, which is none, and for no other. Any
// thread.
std::array<uint64_t, 2> cache_salt_digest(std::string_view word);

}  // namespace sluice
