// Finds special tokens in text: the leftmost one, the longest among those that begin there. Immutable after
// creation.
#pragma once

#include <string_view>
#include <vector>

#include "text/token_table.h"
#include "text/vocabulary.h"

namespace sluice {

class SpecialTokens {
 public:
  void add(int32_t id, std::string_view text, bool is_control);
  void set_trims(std::vector<TokenTrim> trims);

  struct Match {
    int32_t id = -1;
    size_t begin = 0, end = 0;  // with the white space that the token swallows
  };
  // Searches text[from, …). Without parse_control only user-defined tokens count. id < 0: none.
  Match find(std::string_view text, size_t from, bool parse_control) const;
  int32_t exact(std::string_view text) const;

 private:
  Match match_at(std::string_view text, size_t at, const ByteTrie& trie) const;
  bool accept(std::string_view text, size_t from, Match& match) const;
  // Two tries, since text that may not hold control tokens must still find a shorter user-defined one.
  ByteTrie all_, user_defined_;
  std::vector<TokenTrim> trims_;  // sorted by id
};

}  // namespace sluice
