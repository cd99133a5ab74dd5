#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"

namespace sluice {
namespace {

using StopText = StopMatcher::StopText;

std::string pushed(StopMatcher& matcher, std::string_view text) {
  std::string out;
  matcher.push(text, out);
  return out;
}

std::string finished(StopMatcher& matcher) {
  std::string out;
  matcher.finish(out);
  return out;
}

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
  EXPECT_EQ(pushed(m, "42</an"), "42");
  EXPECT_EQ(pushed(m, "sw"), "");
  EXPECT_FALSE(m.stopped());
  EXPECT_EQ(pushed(m, "er> and more"), "");
  EXPECT_TRUE(m.stopped());
  EXPECT_EQ(m.matched(), "</answer>");
  EXPECT_EQ(pushed(m, "anything"), "");
  EXPECT_EQ(finished(m), "");
}

TEST(StopMatcher, ReleasesAFalseStart) {
  StopMatcher m({"STOP"});
  EXPECT_EQ(pushed(m, "a ST"), "a ");
  EXPECT_EQ(pushed(m, "ART"), "START");
  EXPECT_EQ(pushed(m, " S"), " ");
  EXPECT_EQ(finished(m), "S");
  EXPECT_FALSE(m.stopped());
}

TEST(StopMatcher, AnEmptyChunkLetsNothingOut) {
  StopMatcher m({"STOP"});
  EXPECT_EQ(pushed(m, "a ST"), "a ");
  EXPECT_EQ(pushed(m, ""), "");
  EXPECT_EQ(pushed(m, "OP"), "");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, OverlappingBeginnings) {
  StopMatcher m({"aab"});
  EXPECT_EQ(pushed(m, "aaa"), "a");  // "aa" may still become the stop string
  EXPECT_EQ(pushed(m, "b"), "");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, TheEarliestCompletedWinsAndTheLongestAmongEquals) {
  StopMatcher first({"abcd", "bc"});
  EXPECT_EQ(pushed(first, "xabcd"), "xa");
  EXPECT_EQ(first.matched_index(), 1);
  StopMatcher longest({"c", "abc", "bc"});
  EXPECT_EQ(pushed(longest, "xabc"), "x");
  EXPECT_EQ(longest.matched_index(), 1);
}

TEST(StopMatcher, CanIncludeTheStopText) {
  StopMatcher m({"\n\n"}, StopText::kInclude);
  EXPECT_EQ(pushed(m, "line\n"), "line");
  EXPECT_EQ(pushed(m, "\nrest"), "\n\n");
  EXPECT_EQ(m.matched_index(), 0);
}

TEST(StopMatcher, EmptyStopsNeverMatch) {
  StopMatcher m({"", "x"});
  EXPECT_EQ(pushed(m, "abc"), "abc");
  EXPECT_EQ(pushed(m, "dx"), "d");
  EXPECT_EQ(m.matched_index(), 1);
}

TEST(StopMatcher, CutsAtCharacters) {
  StopMatcher m({"é!"});
  EXPECT_EQ(pushed(m, "caf\xC3"), "caf");  // half of é
  EXPECT_EQ(pushed(m, "\xA9"), "");
  EXPECT_EQ(pushed(m, "?"), "é?");
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
      const std::string now = pushed(m, text.substr(at, n));
      EXPECT_TRUE(is_valid_utf8(now));
      out += now;
      // No byte of a stop string may be out before it is known not to be one.
      EXPECT_EQ(expected.out.compare(0, out.size(), out), 0);
      at += n;
    }
    out += finished(m);
    EXPECT_EQ(out, expected.out);
    EXPECT_EQ(m.matched_index() >= 0 ? stops[size_t(m.matched_index())] : "",
              expected.stop >= 0 ? stops[size_t(expected.stop)] : "");
  }
}

}  // namespace
}  // namespace sluice
