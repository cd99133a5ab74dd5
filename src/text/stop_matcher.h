// StopMatcher: ends a text at stop strings that may span tokens, without ever letting part of one out. One
// instance per response, one thread at a time.
//
// The match that completes first in the text wins, as if the text had come byte by byte: how it is cut into
// chunks makes no difference. Where several complete on the same byte, the longest wins. Knuth-Morris-Pratt per
// stop string: cost is the text times the number of stop strings, whatever they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class StopMatcher {
 public:
  enum class StopText { kLeaveOut, kInclude };
  // Empty strings never match.
  explicit StopMatcher(std::vector<std::string> stops, StopText stop_text = StopText::kLeaveOut);

  // Feeds text and appends what may be sent now: never the beginning of a stop string, never half a character.
  // Once stopped() text is ignored.
  void push(std::string_view text, std::string& out);
  // The text ended otherwise: appends what was held back.
  void finish(std::string& out);

  bool stopped() const { return matched_ >= 0; }
  int matched_index() const { return matched_; }  // in the order given; -1: none
  const std::string& matched() const;             // requires stopped()

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> border;  // border[i]: longest proper prefix of text that ends text[0..i]
    uint32_t state = 0;            // bytes of text matched by the end of what was fed
  };
  static void advance(Stop& stop, char byte);
  std::vector<Stop> stops_;
  StopText stop_text_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace sluice
