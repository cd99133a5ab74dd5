// The inside of Tokenizer: its tables. tokenizer_build.cc fills them, tokenizer.cc reads them.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/special_tokens.h"
#include "text/token_table.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

namespace sluice {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space
inline bool ends_with_mark(std::string_view text) { return text.ends_with(kSpaceMark); }

class Tokenizer::Impl {
 public:
  size_t longest_piece() const;  // see Tokenizer
  Status build(VocabularyData data);
  void encode(std::string_view text, bool add_special, bool parse_special, std::vector<int32_t>& out) const;

  StringArena texts_;   // what merging compares: raw bytes, or text with U+2581
  StringArena pieces_;  // what decoding yields
  std::vector<TokenType> types_;
  std::vector<int32_t> end_ids_;  // sorted
  int32_t bos_id_ = -1, eos_id_ = -1, unk_id_ = -1, pad_id_ = -1;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false;
  SpecialTokens specials_;
  TokenTable table_;  // tokens that text may turn into: not control, byte or unknown ones

 private:
  struct Scratch {
    MergeScratch merge;
    std::vector<TextSpan> spans;
    std::vector<Unigram::Piece> unigram;
    std::string text, escaped;
    bool last_unknown = false;
  };

  void build_texts(const VocabularyData& data);
  void build_merges(const VocabularyData& data);
  bool append_spelled(std::string_view token, std::string& out) const;
  void build_bytes();
  Status build_splits(VocabularyData& data);
  void build_ends(const VocabularyData& data);
  void encode_stretch(std::string_view text, bool first, Scratch& s, std::vector<int32_t>& out) const;
  void encode_bytes_level(std::string_view text, Scratch& s, std::vector<int32_t>& out) const;
  void encode_marked(std::string_view text, Scratch& s, std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, Scratch& s, std::vector<int32_t>& out) const;
  void merge_word(std::string_view word, Scratch& s) const;
  void push_unknown(std::string_view text, Scratch& s, std::vector<int32_t>& out) const;

  bool byte_level() const { return kind_ == VocabularyKind::kByteLevelBpe; }

  VocabularyKind kind_ = VocabularyKind::kByteLevelBpe;
  Normalizer normalizer_;
  PreTokenizer splitter_;
  bool has_splits_ = false;
  MergeTable merges_;
  bool has_merges_ = false;
  std::vector<uint32_t> score_ranks_;  // [size]; equal scores share a rank
  size_t max_token_bytes_ = 0;
  Unigram unigram_;
  std::array<int32_t, 256> byte_ids_;  // the token that a byte becomes where nothing else fits
  std::array<int32_t, 256>
      one_byte_ids_;                   // table_ for texts of one byte, and of two: half of all questions, and
  std::vector<int32_t> two_byte_ids_;  // the hash misses the cache. [65536]
  SpacePrefix space_prefix_ = SpacePrefix::kAlways;
  bool prefix_unless_present_ = false, escape_spaces_ = true, byte_fallback_ = true, fuse_unknown_ = false;
  bool ignore_merges_ = false;
  // Bytes that some token has right before a space mark. A word may be cut before a mark that follows any other
  // byte: no token reaches across. (Gemma's 262,144 tokens hold a single such case, ">▁</"; the cut makes prose
  // 8x faster.)
  std::array<bool, 256> joins_before_mark_{};
  // Whether merging the text of a token ends in that token: 0 not known, 1 yes, 2 no. Asking this first turns
  // most words into one hash probe. Filled as words come by, since trying 262,144 tokens at load took 0.2 s;
  // every thread would write the same value, so relaxed order is enough and the tokenizer stays immutable to
  // its callers.
  std::unique_ptr<std::atomic<uint8_t>[]> reaches_itself_;
};

}  // namespace sluice
