#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"

namespace sluice {
namespace {

using StopText = StopMatcher::StopText;

// The definition, by brute force: the first prefix of text that ends in a stop string.
struct Expected {
  std::string out;
  int stop = -1;
};
Expected brute_force(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    Expected best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& s = stops[i];
      if (s.empty() || s.size() > end || text.compare(end - s.size(), s.size(), s) != 0) continue;
      if (best.stop < 0 || s.size() > stops[size_t(best.stop)].size())
        best = {text.substr(0, end - s.size()), int(i)};
    }
    if (best.stop >= 0) return best;
  }
  return {text, -1};
}

TEST(StopMatcher, MatchesAcrossChunks) {
  StopMatcher m({"</answer>"});
  EXPECT_EQ(m.push("42</an"), "42");
  EXPECT_EQ(m.push("sw"), "");
  EXPECT_FALSE(m.stopped());
  EXPECT_EQ(m.push("er> and more"), "");
  EXPECT_TRUE(m.stopped());
  EXPECT_EQ(m.matched(), "</answer>");
  EXPECT_EQ(m.push("anything"), "");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, ReleasesAFalseStart) {
  StopMatcher m({"STOP"});
  EXPECT_EQ(m.push("a ST"), "a ");
  EXPECT_EQ(m.push("ART"), "START");
  EXPECT_EQ(m.push(" S"), " ");
  EXPECT_EQ(m.finish(), "S");
  EXPECT_FALSE(m.stopped());
}

TEST(StopMatcher, AnEmptyChunkLetsNothingOut) {
  StopMatcher m({"STOP"});
  EXPECT_EQ(m.push("a ST"), "a ");
  EXPECT_EQ(m.push(""), "");
  EXPECT_EQ(m.push("OP"), "");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, OverlappingBeginnings) {
  StopMatcher m({"aab"});
  EXPECT_EQ(m.push("aaa"), "a");  // "aa" may still become the stop string
  EXPECT_EQ(m.push("b"), "");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, TheEarliestCompletedWinsAndTheLongestAmongEquals) {
  StopMatcher first({"abcd", "bc"});
  EXPECT_EQ(first.push("xabcd"), "xa");
  EXPECT_EQ(first.matched_index(), 1);
  StopMatcher longest({"c", "abc", "bc"});
  EXPECT_EQ(longest.push("xabc"), "x");
  EXPECT_EQ(longest.matched_index(), 1);
}

TEST(StopMatcher, CanIncludeTheStopText) {
  StopMatcher m({"\n\n"}, StopText::kInclude);
  EXPECT_EQ(m.push("line\n"), "line");
  EXPECT_EQ(m.push("\nrest"), "\n\n");
  EXPECT_EQ(m.matched_index(), 0);
}

TEST(StopMatcher, EmptyStopsNeverMatch) {
  StopMatcher m({"", "x"});
  EXPECT_EQ(m.push("abc"), "abc");
  EXPECT_EQ(m.push("dx"), "d");
  EXPECT_EQ(m.matched_index(), 1);
}

TEST(StopMatcher, CutsAtCharacters) {
  StopMatcher m({"é!"});
  EXPECT_EQ(m.push("caf\xC3"), "caf");  // half of é
  EXPECT_EQ(m.push("\xA9"), "");
  EXPECT_EQ(m.push("?"), "é?");
}

TEST(StopMatcher, AgreesWithBruteForceWhateverTheChunks) {
  std::mt19937 rng(7);
  for (int round = 0; round < 3000; ++round) {
    auto letters = [&](size_t n) {
      std::string s;
      for (size_t i = 0; i < n; ++i) s += rng() % 8 == 0 ? "é" : std::string(1, char('a' + rng() % 2));
      return s;
    };
    std::vector<std::string> stops;
    for (size_t n = 1 + rng() % 3; n > 0; --n) stops.push_back(letters(1 + rng() % 5));
    const std::string text = letters(rng() % 40);
    const Expected expected = brute_force(text, stops);
    StopMatcher m(stops);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t n = std::min<size_t>(1 + rng() % 4, text.size() - at);
      const std::string now = m.push(text.substr(at, n));
      EXPECT_TRUE(is_valid_utf8(now));
      out += now;
      // No byte of a stop string may be out before it is known not to be one.
      EXPECT_EQ(expected.out.compare(0, out.size(), out), 0);
      at += n;
    }
    out += m.finish();
    EXPECT_EQ(out, expected.out);
    EXPECT_EQ(m.matched_index() >= 0 ? stops[size_t(m.matched_index())] : "",
              expected.stop >= 0 ? stops[size_t(expected.stop)] : "");
  }
}

}  // namespace
}  // namespace sluice
