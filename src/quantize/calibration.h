// The samples that activations are measured on: drawn from a text so that short and long ones, and each kind of
// text, come in the proportions in which the text has them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::quantize {

struct Document {
  std::string kind;  // as a JSONL file names it, else "prose", "list" or "code" by its looks
  std::string text;
};

// Error: `bytes` are not UTF-8, or hold a zero (as UTF-16 does); `field` is the flag that named the file.
Status check_text(std::string_view bytes, const std::string& path, const char* field);

// JSON lines, an object a line with "text" and perhaps "kind", where the first line is one or the name ends in
// .jsonl. Else UTF-8 text, cut at blank lines into pieces of a thousand bytes or more. `path` serves messages.
// Errors: check_text's; a line that is no such object.
Result<std::vector<Document>> read_documents(std::string_view bytes, const std::string& path);

struct CalibrationWish {
  int samples = 512;
  int sample_tokens = 512;  // at most; longer documents are cut into several
  uint64_t seed = 1;
  std::function<std::vector<int32_t>(std::string_view)> tokenize;  // with what begins a text
};

struct Calibration {
  uint64_t seed = 1;  // as wished
  int sample_tokens = 512;
  std::vector<std::vector<int32_t>> samples{};
  std::string data_hash{};  // "xxh3-128:…" of the file's bytes
  std::string strata{};     // "code short 12, prose long 40, …": how many of each, for people
  int64_t tokens = 0;
  std::vector<uint64_t> passages{};  // of the documents that samples come from (overlap.h)
};

// Strata are kinds times thirds by length. All pieces where there are fewer than `samples`. The same wish draws
// the same samples. Errors (kInvalidArgument): an empty text, or too little of it: fewer than 8 samples of 16
// tokens.
Result<Calibration> draw_samples(std::string_view bytes, const std::string& path, const CalibrationWish& wish);

}  // namespace sluice::quantize
