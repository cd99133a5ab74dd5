#include "text/tokenizer.h"

#include <algorithm>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace sluice {
namespace {

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

}  // namespace

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
      const int32_t id = bytes == 1 ? one_byte_ids_[uint8_t(word[at])] : table_.find(word.substr(at, bytes));
      symbols.push_back({id, at, at + bytes});
      at += bytes;
    }
  }
  if (has_merges_) {
    merge_symbols(s.merge, [this](const Symbol& l, const Symbol& r) { return merges_.find(l.id, r.id); });
  } else if (!score_ranks_.empty()) {
    merge_symbols(s.merge, [this, word](const Symbol& l, const Symbol& r) -> MergeTable::Merge {
      const size_t bytes = r.end - l.begin;
      const char* p = word.data() + l.begin;
      const int32_t id = bytes == 2                 ? two_byte_ids_[size_t(uint8_t(p[0])) << 8 | uint8_t(p[1])]
                         : bytes > max_token_bytes_ ? -1
                                                    : table_.find({p, bytes});
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

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)), longest_piece_(impl_->longest_piece()) {}
Tokenizer::~Tokenizer() = default;

size_t Tokenizer::Impl::longest_piece() const {
  if (!normalizer_.empty()) return 0;
  std::array<bool, 256> bytes{};
  size_t longest = 0;
  for (size_t id = 0; id < types_.size(); ++id) {
    const std::string_view piece = pieces_[id];
    longest = std::max(longest, piece.size());
    if (piece.size() == 1) bytes[uint8_t(piece[0])] = true;
  }
  // With a token for every byte no text is unknown, or dropped.
  return std::find(bytes.begin(), bytes.end(), false) == bytes.end() ? longest : 0;
}

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

size_t Tokenizer::longest_piece() const { return longest_piece_; }

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
