// VocabularyData: what a tokenizer is made of, as plain data. A reader (tokenizer_json.h, tokenizer_model.h, or
// the model room's GGUF glue) fills it; Tokenizer::create checks it. Nothing here is trusted until then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

enum class VocabularyKind {
  kByteLevelBpe,      // tokens are written in GPT-2's printable alphabet of bytes (GGUF model "gpt2")
  kSentencePieceBpe,  // tokens are text with U+2581 for space (GGUF model "llama"; "gemma4" with merges)
  kUnigram,           // as above, the best sum of scores wins (GGUF model "t5")
};

// The numbers are those of GGUF's tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// One split of the text before merging (a "pre-tokenizer"). Every step splits the pieces of the step before.
struct SplitStep {
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  std::string regex;  // in the dialect of Hugging Face tokenizers; rewritten for PCRE2 on creation
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // the regex matches the pieces, what lies between is the separator
};

// One change of the text before splitting. Applied to each stretch between special tokens.
struct NormalizeStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kReplace,
    kReplaceRegex,
    kStrip,
    kCollapseSpaces,
    kPrecompiled
  };
  Kind kind = Kind::kNfc;
  std::string
      pattern{};  // kReplace: literal; kReplaceRegex: regex; kPrecompiled: SentencePiece's charsmap bytes
  std::string content{};  // kReplace, kReplaceRegex: what takes its place; kStrip: "l", "r" or "lr"
};

enum class SpacePrefix {
  kNever,
  kFirst,   // only at the start of the text
  kAlways,  // at the start and after every special token
};

// How an added token takes part in matching, where it differs from plain matching.
struct TokenTrim {
  int32_t id = -1;
  bool left = false;         // swallows white space before it
  bool right = false;        // swallows white space after it
  bool single_word = false;  // only where no word character touches it
};

struct VocabularyData {
  VocabularyKind kind = VocabularyKind::kByteLevelBpe;
  std::vector<std::string> tokens;  // [vocabulary size], as the file spells them
  std::vector<float> scores;        // empty or [vocabulary size]; higher merges first
  std::vector<TokenType> types;     // empty (all normal) or [vocabulary size]
  std::vector<std::string> merges;  // "left right", best first; empty: merge by score
  std::vector<TokenTrim> trims;

  // Name of a known pre-tokenizer ("smollm", "gpt-2", "llama-bpe", "qwen2", "default", …), used where splits is
  // empty and kind is kByteLevelBpe. It also gives the defaults of ignore_merges and add_bos.
  std::string pre;
  std::vector<SplitStep> splits;
  std::vector<NormalizeStep> normalizers;

  int32_t bos_id = -1, eos_id = -1, eot_id = -1, unk_id = -1, pad_id = -1;
  std::vector<int32_t> end_of_generation_ids;  // further ones that the files name (generation_config.json)

  // Unset: the default of the kind (byte-level: no BOS, no prefix; SentencePiece: BOS and prefix), or of pre.
  // add_space_prefix of a byte-level vocabulary counts only with explicit splits.
  std::optional<bool> add_bos, add_eos, add_space_prefix, ignore_merges;
  SpacePrefix space_prefix = SpacePrefix::kAlways;  // where add_space_prefix holds
  bool space_prefix_unless_present = false;         // no prefix before a stretch that starts with a space
  bool escape_spaces = true;                        // SentencePiece kinds: " " becomes U+2581
  bool byte_fallback = true;  // characters without token become byte tokens, if those exist
  bool fuse_unknown = false;  // a run of unknown characters becomes one unknown token
};

}  // namespace sluice
