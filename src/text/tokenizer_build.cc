#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/byte_alphabet.h"
#include "text/tokenizer_impl.h"

namespace sluice {
namespace {

constexpr size_t kMaxTokens = 4 << 20;
constexpr size_t kMaxVocabularyBytes = size_t(512) << 20;

// Tokens that end a turn in the families we know, whatever the file calls them.
constexpr std::string_view kTurnEnds[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<turn|>",
    "<|end_of_turn|>",
    "<eos>",
    "<end_of_utterance>",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",
};

std::string spaces_unescaped(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool mark = text.substr(at, kSpaceMark.size()) == kSpaceMark;
    out += mark ? ' ' : text[at];
    at += mark ? kSpaceMark.size() : 1;
  }
  return out;
}

int byte_of_token(std::string_view text) {  // "<0x0A>" → 10; -1: not of that form
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

Status check_data(const VocabularyData& d) {
  const size_t n = d.tokens.size();
  auto corrupt = [](std::string text) { return Status(Error{ErrorCode::kCorrupt, "vocabulary: " + text}); };
  if (n == 0) return corrupt("no tokens");
  if (n > kMaxTokens) return Status(Error{ErrorCode::kTooLarge, fmt::format("vocabulary of {} tokens", n)});
  size_t bytes = 0;
  for (const std::string& token : d.tokens) bytes += token.size();
  if (bytes > kMaxVocabularyBytes) return Status(Error{ErrorCode::kTooLarge, "vocabulary over 512 MiB"});
  if (!d.scores.empty() && d.scores.size() != n) {
    return corrupt(fmt::format("{} scores for {} tokens", d.scores.size(), n));
  }
  if (!d.types.empty() && d.types.size() != n) {
    return corrupt(fmt::format("{} token types for {} tokens", d.types.size(), n));
  }
  for (const int32_t id : {d.bos_id, d.eos_id, d.eot_id, d.unk_id, d.pad_id}) {
    if (id < -1 || id >= int64_t(n)) return corrupt(fmt::format("special token id {} of {} tokens", id, n));
  }
  if (d.kind == VocabularyKind::kUnigram && d.scores.empty()) return corrupt("a unigram model without scores");
  if (d.kind == VocabularyKind::kSentencePieceBpe && d.scores.empty() && d.merges.empty()) {
    return corrupt("neither scores nor merges");
  }
  if (d.kind == VocabularyKind::kByteLevelBpe && d.merges.empty() && n > 512) return corrupt("no merges");
  return {};
}

}  // namespace

void Tokenizer::Impl::build_texts(const VocabularyData& d) {
  const size_t n = d.tokens.size();
  size_t bytes = 0;
  for (const std::string& token : d.tokens) bytes += token.size();
  texts_.reserve(n, bytes);
  pieces_.reserve(n, bytes);
  std::string raw;
  std::vector<int32_t> unreachable;  // ascending
  for (size_t i = 0; i < n; ++i) {
    const std::string& token = d.tokens[i];
    const TokenType type = types_[i];
    const bool plain = type == TokenType::kControl || type == TokenType::kUnknown;
    if (byte_level()) {
      // Added tokens are spelled as plain text. A normal token outside the alphabet is nothing merging can
      // reach, and its text may be the bytes of another token.
      raw.clear();
      const bool spelled = append_bytes_from_alphabet(token, raw);
      const bool as_text = plain || type == TokenType::kUserDefined || !spelled;
      if (!spelled || (as_text && raw != token)) unreachable.push_back(int32_t(i));
      texts_.add(as_text ? token : raw);
      pieces_.add(as_text ? token : raw);
      continue;
    }
    texts_.add(token);
    const int byte = type == TokenType::kByte ? byte_of_token(token) : -1;
    if (byte >= 0) {
      pieces_.add(std::string(1, char(byte)));
    } else {
      pieces_.add(plain || !escape_spaces_ ? token : spaces_unescaped(token));
    }
  }
  table_ = TokenTable(&texts_, n);
  reaches_itself_ = std::make_unique<std::atomic<uint8_t>[]>(n);
  for (size_t i = 0; i < n; ++i) {
    const std::string_view text = texts_[i];
    const TokenType type = types_[i];
    const bool special =
        type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kUserDefined;
    if (special) specials_.add(int32_t(i), text, type != TokenType::kUserDefined);
    if (type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kByte || text.empty())
      continue;
    if (std::binary_search(unreachable.begin(), unreachable.end(), int32_t(i))) continue;
    table_.insert(int32_t(i));
    max_token_bytes_ = std::max(max_token_bytes_, text.size());
    if (!byte_level()) {
      for (size_t mark = text.find(kSpaceMark, 1); mark != text.npos; mark = text.find(kSpaceMark, mark + 1)) {
        if (!ends_with_mark(text.substr(0, mark))) joins_before_mark_[uint8_t(text[mark - 1])] = true;
      }
    }
    if (kind_ == VocabularyKind::kUnigram) {
      unigram_.add(text, int32_t(i), d.scores[i], type == TokenType::kUserDefined);
    }
  }
}

// Appends the bytes of a token as the file spells it.
bool Tokenizer::Impl::append_spelled(std::string_view token, std::string& out) const {
  if (byte_level()) return append_bytes_from_alphabet(token, out);
  out += token;
  return true;
}

void Tokenizer::Impl::build_merges(const VocabularyData& d) {
  has_merges_ = !d.merges.empty();
  if (has_merges_) {
    merges_ = MergeTable(d.merges.size());
    std::string text;  // left and right, joined
    for (size_t i = 0; i < d.merges.size(); ++i) {
      const std::string_view merge = d.merges[i];
      const size_t gap = merge.find(' ', 1);
      if (gap == merge.npos) continue;
      text.clear();
      bool known = append_spelled(merge.substr(0, gap), text);
      const size_t middle = text.size();
      known = known && append_spelled(merge.substr(gap + 1), text);
      if (!known) continue;
      const std::string_view both_text = text;
      const int32_t l = table_.find(both_text.substr(0, middle)), r = table_.find(both_text.substr(middle));
      const int32_t both = table_.find(both_text);
      // A merge whose parts or result are no tokens can never happen.
      if (l >= 0 && r >= 0 && both >= 0) merges_.insert(l, r, {uint32_t(i), both});
    }
    return;
  }
  std::vector<float> sorted;
  for (const float score : d.scores)
    sorted.push_back(std::isnan(score) ? -std::numeric_limits<float>::max() : score);
  std::vector<float> scores = sorted;
  std::sort(sorted.begin(), sorted.end(), std::greater<float>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  score_ranks_.reserve(scores.size());
  for (const float score : scores) {
    score_ranks_.push_back(uint32_t(
        std::lower_bound(sorted.begin(), sorted.end(), score, std::greater<float>()) - sorted.begin()));
  }
}

void Tokenizer::Impl::build_bytes() {
  byte_ids_.fill(-1);
  if (byte_level()) {
    for (int b = 0; b < 256; ++b) {
      const char c = char(b);
      byte_ids_[size_t(b)] = table_.find(std::string_view(&c, 1));
    }
    return;
  }
  one_byte_ids_.fill(-1);
  two_byte_ids_.assign(65536, -1);
  for (int b = 0; b < 65536; ++b) {
    const char text[2] = {char(b >> 8), char(b & 0xFF)};
    two_byte_ids_[size_t(b)] = table_.find({text, 2});
    if (b < 256) one_byte_ids_[size_t(b)] = table_.find({text + 1, 1});
  }
  for (size_t i = 0; byte_fallback_ && i < types_.size(); ++i) {
    const int byte = types_[i] == TokenType::kByte ? byte_of_token(texts_[i]) : -1;
    if (byte >= 0 && byte_ids_[size_t(byte)] < 0) byte_ids_[size_t(byte)] = int32_t(i);
  }
}

Status Tokenizer::Impl::build_splits(VocabularyData& d) {
  PreTokenizerTraits traits;
  const bool named = byte_level() && d.splits.empty();
  if (named) {
    Result<PreTokenizerTraits> known = pre_tokenizer_traits(d.pre);
    if (!known) return known.error();
    traits = std::move(*known);
    d.splits = traits.splits;
  }
  Result<PreTokenizer> splitter = PreTokenizer::create(d.splits);
  if (!splitter) return splitter.error();
  splitter_ = std::move(*splitter);
  has_splits_ = !d.splits.empty();
  Result<Normalizer> normalizer = Normalizer::create(d.normalizers);
  if (!normalizer) return normalizer.error();
  normalizer_ = std::move(*normalizer);
  ignore_merges_ = d.ignore_merges.value_or(traits.ignore_merges);
  add_bos_ = d.add_bos.value_or(byte_level() ? traits.add_bos : kind_ == VocabularyKind::kSentencePieceBpe);
  add_eos_ = d.add_eos.value_or(kind_ == VocabularyKind::kUnigram);
  add_space_prefix_ =
      !byte_level() && d.add_space_prefix.value_or(true) && d.space_prefix != SpacePrefix::kNever;
  // GGUF files say add_space_prefix for byte-level vocabularies too, and llama.cpp does not act on it.
  if (byte_level() && !named && d.add_space_prefix.value_or(false)) add_space_prefix_ = true;
  return {};
}

void Tokenizer::Impl::build_ends(const VocabularyData& d) {
  auto add = [this](int32_t id) {
    if (id >= 0 && id < int32_t(types_.size())) end_ids_.push_back(id);
  };
  add(d.eos_id);
  add(d.eot_id);
  for (const int32_t id : d.end_of_generation_ids) add(id);
  for (const std::string_view name : kTurnEnds) add(specials_.exact(name));
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
}

Status Tokenizer::Impl::build(VocabularyData d) {
  if (Status status = check_data(d); !status) return status;
  kind_ = d.kind;
  types_ = d.types.empty() ? std::vector<TokenType>(d.tokens.size(), TokenType::kNormal) : std::move(d.types);
  for (TokenType& type : types_) {
    if (type < TokenType::kNormal || type > TokenType::kByte) type = TokenType::kNormal;
  }
  bos_id_ = d.bos_id, eos_id_ = d.eos_id, unk_id_ = d.unk_id, pad_id_ = d.pad_id;
  space_prefix_ = d.space_prefix;
  prefix_unless_present_ = d.space_prefix_unless_present;
  escape_spaces_ = d.escape_spaces && !byte_level();
  byte_fallback_ = d.byte_fallback;
  fuse_unknown_ = d.fuse_unknown;
  if (Status status = build_splits(d); !status) return status;
  build_texts(d);
  specials_.set_trims(d.trims);
  if (kind_ != VocabularyKind::kUnigram) build_merges(d);
  build_bytes();
  build_ends(d);
  return {};
}

}  // namespace sluice
