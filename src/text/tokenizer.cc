#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "text/byte_alphabet.h"
#include "text/merge.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/special_tokens.h"
#include "text/token_table.h"
#include "text/unigram.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxTokens = 4 << 20;
constexpr size_t kMaxVocabularyBytes = size_t(512) << 20;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

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

std::string_view spaces_escaped(std::string_view text, std::string& buffer) {
  buffer.clear();
  for (const char c : text) {
    if (c == ' ') {
      buffer += kSpaceMark;
    } else {
      buffer += c;
    }
  }
  return buffer;
}

bool ends_with_mark(std::string_view text) { return text.ends_with(kSpaceMark); }

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

class Tokenizer::Impl {
 public:
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
  std::array<int32_t, 256> byte_ids_;
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
      const bool spelled = bytes_from_alphabet(token, raw);
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

void Tokenizer::Impl::build_merges(const VocabularyData& d) {
  has_merges_ = !d.merges.empty();
  if (has_merges_) {
    merges_ = MergeTable(d.merges.size());
    std::string left, right;
    for (size_t i = 0; i < d.merges.size(); ++i) {
      const std::string_view merge = d.merges[i];
      const size_t gap = merge.find(' ', 1);
      if (gap == merge.npos) continue;
      left = merge.substr(0, gap);
      right = merge.substr(gap + 1);
      if (byte_level() &&
          (!bytes_from_alphabet(std::string(left), left) || !bytes_from_alphabet(std::string(right), right)))
        continue;
      const int32_t l = table_.find(left), r = table_.find(right), both = table_.find(left += right);
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
  if (!byte_fallback_) return;
  for (size_t i = 0; i < types_.size(); ++i) {
    const int byte = types_[i] == TokenType::kByte ? byte_of_token(texts_[i]) : -1;
    if (byte >= 0 && byte_ids_[size_t(byte)] < 0) byte_ids_[size_t(byte)] = int32_t(i);
  }
}

Status Tokenizer::Impl::build_splits(VocabularyData& d) {
  PreTokenizerTraits traits;
  if (byte_level() && d.splits.empty()) {
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
  if (byte_level() && d.add_space_prefix.value_or(false)) add_space_prefix_ = true;
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

void Tokenizer::Impl::encode(std::string_view text, bool add_special, bool parse_special,
                             std::vector<int32_t>& out) const {
  out.reserve(text.size() / 3 + 4);
  if (add_special && add_bos_ && bos_id_ >= 0) out.push_back(bos_id_);
  Scratch scratch;
  for (size_t at = 0; at < text.size();) {
    const SpecialTokens::Match match = specials_.find(text, at, parse_special);
    const size_t end = match.id >= 0 ? match.begin : text.size();
    encode_stretch(text.substr(at, end - at), at == 0, scratch, out);
    if (match.id < 0) break;
    out.push_back(match.id);
    at = match.end;
  }
  if (add_special && add_eos_ && eos_id_ >= 0) out.push_back(eos_id_);
}

void Tokenizer::Impl::encode_stretch(std::string_view text, bool first, Scratch& s,
                                     std::vector<int32_t>& out) const {
  if (text.empty()) return;
  s.last_unknown = false;
  if (!normalizer_.empty()) {
    s.text.assign(text);
    normalizer_.apply(s.text);
    text = s.text;
    if (text.empty()) return;
  }
  const bool has_prefix = text[0] == ' ' || (!byte_level() && text.starts_with(kSpaceMark));
  if (add_space_prefix_ && (space_prefix_ == SpacePrefix::kAlways || first) &&
      !(prefix_unless_present_ && has_prefix)) {
    std::string prefixed = " ";
    prefixed += text;
    s.text.swap(prefixed);
    text = s.text;
  }
  if (byte_level()) {
    encode_bytes_level(text, s, out);
  } else {
    encode_marked(escape_spaces_ ? spaces_escaped(text, s.escaped) : text, s, out);
  }
}

void Tokenizer::Impl::encode_bytes_level(std::string_view text, Scratch& s, std::vector<int32_t>& out) const {
  // The patterns see valid UTF-8 only; each run of other bytes is a piece of its own.
  const bool all_valid = is_valid_utf8(text);
  for (size_t at = 0; at < text.size();) {
    size_t end = all_valid ? text.size() : at;
    while (end < text.size() && utf8_step(text, end).valid) end += utf8_step(text, end).bytes;
    const std::string_view valid = text.substr(at, end - at);
    s.spans.clear();
    splitter_.split(valid, s.spans);
    for (const TextSpan& span : s.spans) encode_word(valid.substr(span.begin, span.end - span.begin), s, out);
    const size_t bad = end;
    while (end < text.size() && !utf8_step(text, end).valid) end += utf8_step(text, end).bytes;
    if (end > bad) encode_word(text.substr(bad, end - bad), s, out);
    at = end;
  }
}

void Tokenizer::Impl::encode_marked(std::string_view text, Scratch& s, std::vector<int32_t>& out) const {
  if (has_splits_ && is_valid_utf8(text)) {
    s.spans.clear();
    splitter_.split(text, s.spans);
    for (const TextSpan& span : s.spans) encode_word(text.substr(span.begin, span.end - span.begin), s, out);
    return;
  }
  if (kind_ ==
      VocabularyKind::kUnigram) {  // where sums tie, rounding decides, so they must run over the whole text
    encode_word(text, s, out);
    return;
  }
  size_t begin = 0;
  for (size_t mark = text.find(kSpaceMark); mark != text.npos; mark = text.find(kSpaceMark, mark)) {
    const bool cut =
        mark > begin && !joins_before_mark_[uint8_t(text[mark - 1])] && !ends_with_mark(text.substr(0, mark));
    if (cut) {
      encode_word(text.substr(begin, mark - begin), s, out);
      begin = mark;
    }
    mark += kSpaceMark.size();
  }
  if (begin < text.size()) encode_word(text.substr(begin), s, out);
}

void Tokenizer::Impl::merge_word(std::string_view word, Scratch& s) const {
  std::vector<Symbol>& symbols = s.merge.symbols;
  symbols.clear();
  if (byte_level()) {
    for (uint32_t i = 0; i < word.size(); ++i) symbols.push_back({byte_ids_[uint8_t(word[i])], i, i + 1});
  } else {
    for (uint32_t at = 0; at < word.size();) {
      const Utf8Step step = utf8_step(word, at);
      const uint32_t bytes = step.valid ? uint32_t(step.bytes) : 1;
      symbols.push_back({table_.find(word.substr(at, bytes)), at, at + bytes});
      at += bytes;
    }
  }
  if (has_merges_) {
    merge_symbols(s.merge, [this](const Symbol& l, const Symbol& r) { return merges_.find(l.id, r.id); });
  } else if (!score_ranks_.empty()) {
    merge_symbols(s.merge, [this, word](const Symbol& l, const Symbol& r) -> MergeTable::Merge {
      const size_t bytes = r.end - l.begin;
      const int32_t id = bytes > max_token_bytes_ ? -1 : table_.find(word.substr(l.begin, bytes));
      return id < 0 ? MergeTable::Merge{} : MergeTable::Merge{score_ranks_[size_t(id)], id};
    });
  }
}

void Tokenizer::Impl::encode_word(std::string_view word, Scratch& s, std::vector<int32_t>& out) const {
  if (kind_ == VocabularyKind::kUnigram) {
    unigram_.encode(word, s.unigram);
    for (const Unigram::Piece& p : s.unigram) {
      if (p.id < 0)
        push_unknown(word.substr(p.begin, p.end - p.begin), s, out);
      else
        out.push_back(p.id), s.last_unknown = false;
    }
    return;
  }
  const int32_t whole = word.size() <= max_token_bytes_ ? table_.find(word) : -1;
  uint8_t reaches = 0;
  if (whole >= 0) {
    reaches = ignore_merges_ ? 1 : reaches_itself_[size_t(whole)].load(std::memory_order_relaxed);
    if (reaches == 1) {
      out.push_back(whole);
      s.last_unknown = false;
      return;
    }
  }
  merge_word(word, s);
  const std::vector<Symbol>& symbols = s.merge.symbols;
  if (whole >= 0 && reaches == 0) {
    const bool yes = symbols.size() == 1 && symbols[0].id == whole;
    reaches_itself_[size_t(whole)].store(yes ? 1 : 2, std::memory_order_relaxed);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id < 0) {
      push_unknown(word.substr(symbol.begin, symbol.end - symbol.begin), s, out);
    } else {
      out.push_back(symbol.id);
      s.last_unknown = false;
    }
  }
}

void Tokenizer::Impl::push_unknown(std::string_view text, Scratch& s, std::vector<int32_t>& out) const {
  bool all = !byte_level();
  for (const char c : text) all = all && byte_ids_[uint8_t(c)] >= 0;
  if (all) {
    for (const char c : text) out.push_back(byte_ids_[uint8_t(c)]);
    s.last_unknown = false;
    return;
  }
  // A byte-level vocabulary that lacks a byte drops it, as both llama.cpp and Hugging Face do.
  if (!byte_level() && unk_id_ >= 0 && !(fuse_unknown_ && s.last_unknown)) out.push_back(unk_id_);
  s.last_unknown = true;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(VocabularyData data) {
  auto impl = std::make_unique<Impl>();
  if (Status status = impl->build(std::move(data)); !status) return status.error();
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  std::vector<int32_t> out;
  impl_->encode(text, add_special, parse_special, out);
  return out;
}

std::string_view Tokenizer::piece(int32_t id, ControlText control) const {
  if (id < 0 || id >= size() || (control == ControlText::kHide && is_control(id))) return {};
  return impl_->pieces_[size_t(id)];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, ControlText control) const {
  std::string out;
  bool strip = strips_leading_space();
  for (const int32_t id : ids) {
    std::string_view text = piece(id, control);
    if (strip && !text.empty()) {
      if (text[0] == ' ' && !is_control(id)) text.remove_prefix(1);
      strip = false;
    }
    out += text;
  }
  return out;
}

int32_t Tokenizer::size() const { return int32_t(impl_->types_.size()); }
int32_t Tokenizer::bos_id() const { return impl_->bos_id_; }
int32_t Tokenizer::eos_id() const { return impl_->eos_id_; }
int32_t Tokenizer::unk_id() const { return impl_->unk_id_; }
int32_t Tokenizer::pad_id() const { return impl_->pad_id_; }
bool Tokenizer::adds_bos() const { return impl_->add_bos_ && impl_->bos_id_ >= 0; }
bool Tokenizer::adds_eos() const { return impl_->add_eos_ && impl_->eos_id_ >= 0; }
bool Tokenizer::strips_leading_space() const { return impl_->add_space_prefix_; }

bool Tokenizer::is_control(int32_t id) const {
  if (id < 0 || id >= size()) return false;
  const TokenType type = impl_->types_[size_t(id)];
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

bool Tokenizer::end_of_generation(int32_t id) const {
  return std::binary_search(impl_->end_ids_.begin(), impl_->end_ids_.end(), id);
}

std::span<const int32_t> Tokenizer::end_of_generation_ids() const { return impl_->end_ids_; }

int32_t Tokenizer::find(std::string_view text) const {
  const int32_t special = impl_->specials_.exact(text);
  return special >= 0 ? special : impl_->table_.find(text);
}

}  // namespace sluice
