#include "text/special_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace sluice {
namespace {

// A search costs at most text size times this; real special tokens have under 64 bytes.
constexpr size_t kMaxSpecialBytes = 1024;

bool word_character_at(std::string_view text, size_t at) {
  const Utf8Step step = utf8_step(text, at);
  if (!step.valid) return false;
  utf8proc_int32_t code = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at, utf8proc_ssize_t(step.bytes),
                   &code);
  const utf8proc_category_t category = utf8proc_category(code);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

size_t start_of_previous(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (uint8_t(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

}  // namespace

void SpecialTokens::add(int32_t id, std::string_view text, bool is_control) {
  if (text.empty() || text.size() > kMaxSpecialBytes) return;
  all_.insert(text, id);
  if (!is_control) user_defined_.insert(text, id);
}

void SpecialTokens::set_trims(std::vector<TokenTrim> trims) {
  trims_ = std::move(trims);
  std::stable_sort(trims_.begin(), trims_.end(),
                   [](const TokenTrim& a, const TokenTrim& b) { return a.id < b.id; });
}

SpecialTokens::Match SpecialTokens::match_at(std::string_view text, size_t at, const ByteTrie& trie) const {
  Match best;
  int32_t node = trie.root();
  for (size_t i = at; i < text.size(); ++i) {
    node = trie.step(node, uint8_t(text[i]));
    if (node < 0) break;
    if (trie.id(node) >= 0) best = {trie.id(node), at, i + 1};
  }
  return best;
}

bool SpecialTokens::accept(std::string_view text, size_t from, Match& match) const {
  const auto trim = std::lower_bound(trims_.begin(), trims_.end(), match.id,
                                     [](const TokenTrim& t, int32_t id) { return t.id < id; });
  if (trim == trims_.end() || trim->id != match.id) return true;
  if (trim->single_word) {
    if (match.end < text.size() && word_character_at(text, match.end)) return false;
    if (match.begin > 0 && word_character_at(text, start_of_previous(text, match.begin))) return false;
  }
  while (trim->left && match.begin > from && white_space_before(text, match.begin) > 0) {
    match.begin -= white_space_before(text, match.begin);
  }
  while (trim->right && white_space_at(text, match.end) > 0) match.end += white_space_at(text, match.end);
  return true;
}

SpecialTokens::Match SpecialTokens::find(std::string_view text, size_t from, bool parse_control) const {
  const ByteTrie& trie = parse_control ? all_ : user_defined_;
  for (size_t at = from; at < text.size(); ++at) {
    if (!trie.starts(uint8_t(text[at]))) continue;
    Match match = match_at(text, at, trie);
    if (match.id >= 0 && accept(text, from, match)) return match;
  }
  return {};
}

int32_t SpecialTokens::exact(std::string_view text) const {
  const Match match = match_at(text, 0, all_);
  return match.id >= 0 && match.end == text.size() ? match.id : -1;
}

}  // namespace sluice
