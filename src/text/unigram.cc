#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "text/utf8.h"

namespace sluice {
namespace {
constexpr float kUnknownPenalty = 10.0f;  // below the worst token, as SentencePiece has it
}

void Unigram::add(std::string_view text, int32_t id, float score, bool user_defined) {
  min_score_ = entries_.empty() ? score : std::min(min_score_, score);
  max_score_ = entries_.empty() ? score : std::max(max_score_, score);
  trie_.insert(text, int32_t(entries_.size()));
  entries_.push_back({id, score, user_defined});
}

void Unigram::encode(std::string_view word, std::vector<Piece>& pieces) const {
  struct Best {
    float score = -std::numeric_limits<float>::infinity();
    int32_t id = -1;
    uint32_t begin = UINT32_MAX;  // not reached
  };
  pieces.clear();
  std::vector<Best> best(word.size() + 1);
  best[0] = {0, -1, 0};
  for (size_t at = 0; at < word.size();) {
    const size_t character = std::max<size_t>(utf8_step(word, at).bytes, 1);
    const float here = best[at].score;
    bool single = false;
    int32_t node = trie_.root();
    for (size_t end = at; end < word.size();) {
      node = trie_.step(node, uint8_t(word[end++]));
      if (node < 0) break;
      if (trie_.id(node) < 0) continue;
      const Entry& entry = entries_[size_t(trie_.id(node))];
      const float score = here + (entry.user_defined ? float(end - at) * max_score_ - 0.1f : entry.score);
      if (best[end].begin == UINT32_MAX || score > best[end].score) best[end] = {score, entry.id, uint32_t(at)};
      single |= end - at == character;
    }
    if (!single) {
      const size_t end = at + character;
      const float score = here + min_score_ - kUnknownPenalty;
      if (best[end].begin == UINT32_MAX || score > best[end].score) best[end] = {score, -1, uint32_t(at)};
    }
    at += character;
  }
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    pieces.push_back({best[end].id, best[end].begin, uint32_t(end)});
  }
  std::reverse(pieces.begin(), pieces.end());
}

}  // namespace sluice
