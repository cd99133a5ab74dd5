// GPT-2's printable alphabet of bytes: each byte has one Unicode character, so that token files stay text.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Appends the bytes that text stands for. False, with part of them appended: a character outside the alphabet.
bool append_bytes_from_alphabet(std::string_view text, std::string& out);
// The other way round.
std::string alphabet_from_bytes(std::string_view bytes);

}  // namespace sluice
