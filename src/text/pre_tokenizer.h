// Splits text into the pieces that merging never crosses, by PCRE2 (JIT) with Unicode properties. Immutable
// after creation; any thread. The patterns of known GGUF pre-tokenizers are in pre_tokenizer_names.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"

namespace sluice {

struct TextSpan {
  size_t begin, end;
};

// The regex dialect of Hugging Face tokenizers, made to mean the same in PCRE2.
std::string adapt_regex(std::string_view pattern);

// A compiled pattern. Text given to it must be valid UTF-8.
class Regex {
 public:
  static Result<Regex> create(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();
  // First match that begins at or after from. False: none, or the pattern ran over its step limit.
  bool find(std::string_view text, size_t from, TextSpan& match) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

class PreTokenizer {
 public:
  static Result<PreTokenizer> create(const std::vector<SplitStep>& steps);
  // Appends the pieces of text (valid UTF-8) in order. Without steps: the text as one piece.
  void split(std::string_view text, std::vector<TextSpan>& pieces) const;

 private:
  struct Step {
    Regex regex;
    SplitStep::Behavior behavior;
    bool invert;
  };
  static void split_span(const Step& step, std::string_view text, TextSpan span, std::vector<TextSpan>& pieces);
  std::vector<Step> steps_;
};

// What a GGUF tokenizer.ggml.pre name stands for. kUnsupported for a name that is not known.
struct PreTokenizerTraits {
  std::vector<SplitStep> splits;
  bool ignore_merges = false;
  bool add_bos = false;
};
Result<PreTokenizerTraits> pre_tokenizer_traits(std::string_view name);

// The pattern of GPT-2, which a ByteLevel pre-tokenizer of tokenizer.json implies.
std::string_view gpt2_pattern();

}  // namespace sluice
