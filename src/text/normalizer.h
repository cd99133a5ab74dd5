// Changes text before it is split: Unicode normal forms, replacements, SentencePiece's precompiled map.
// Immutable after creation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace sluice {

class Normalizer {
 public:
  static Result<Normalizer> create(const std::vector<NormalizeStep>& steps);
  bool empty() const { return steps_.empty(); }
  // Text that is not valid UTF-8 keeps its bytes in the steps that need characters.
  void apply(std::string& text) const;

 private:
  struct Step {
    NormalizeStep what;
    std::optional<Regex> regex;
    std::vector<uint32_t> trie;  // kPrecompiled: Darts-clone units
  };
  static void apply_precompiled(const Step& step, std::string& text);
  std::vector<Step> steps_;
};

}  // namespace sluice
