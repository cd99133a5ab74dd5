// Whether two texts share a passage: what a model was calibrated on may not be what it is judged by. A passage
// is 16 words in a row, in any layout and case (characters where they are not ASCII), or a file as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::quantize {

inline constexpr int kPassageWords = 16;

// Hashes of the text's passages, one after the other without overlap. A shorter text has none.
std::vector<uint64_t> passages(std::string_view text);

// A file's bytes as a passage: short texts have no other.
uint64_t whole_file(std::string_view bytes);

// The first passage of `text`, wherever it begins, whose hash is among `known`.
std::optional<std::string> shared_passage(std::string_view text, std::span<const uint64_t> known);

// Hashes as lines of 16 hexadecimal digits, and back; lines that are none are left out.
std::string passages_text(std::span<const uint64_t> hashes);
std::vector<uint64_t> parse_passages(std::string_view text);

}  // namespace sluice::quantize
