// The unigram model of SentencePiece: the segmentation with the best sum of token scores, by Viterbi.
// Immutable after creation.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/token_table.h"

namespace sluice {

class Unigram {
 public:
  void add(std::string_view text, int32_t id, float score, bool user_defined);
  struct Piece {
    int32_t id;  // -1: an unknown character
    uint32_t begin, end;
  };
  // Replaces pieces by the best segmentation of word. Cost: bytes of word times the longest token.
  void encode(std::string_view word, std::vector<Piece>& pieces) const;

 private:
  ByteTrie trie_;
  struct Entry {
    int32_t id;
    float score;
    bool user_defined;
  };
  std::vector<Entry> entries_;  // what the trie's ids index
  float min_score_ = 0, max_score_ = 0;
};

}  // namespace sluice
