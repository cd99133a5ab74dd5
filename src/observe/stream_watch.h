// Looks at the tokens of one stream as they come and says which are odd. Pure: time is in the tokens. What is
// usual between two tokens and of a prompt is learned over all streams of a lane; all else over this stream.
// Allocates nothing. A race of two threads over a lane's baseline loses a value of it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/logits_state.h"
#include "observe/anomaly.h"
#include "observe/baseline.h"

namespace sluice {

struct LaneUsual {
  Baseline interval_ms;   // between two tokens; what is odd counts as the most that is not
  Baseline prompt_reuse;  // KV reuse of first tokens
};

struct TokenSeen {
  int32_t id = -1;
  double interval_ms = -1;  // since the token before; below 0: the first
  float kv_hit = 0;
  LogitsState logits = LogitsState::fine;
  float peak = 0;              // probability of the likeliest id; 0: not told
  int chars = 0, control = 0;  // of its text
};

struct OddToken {
  AnomalyKind kind = AnomalyKind::slow_token;
  double value = 0, usual = 0;
};

class StreamWatch {
 public:
  static constexpr int kMostKinds = 8;

  // The interval by its lane's mean and deviation; 0 while the lane has not seen enough.
  static double z_score(double interval_ms, const LaneUsual& lane);

  // Adds the token to what is usual, too. What is found is valid until the next call.
  std::span<const OddToken> push(const TokenSeen& token, LaneUsual& lane);
  int tokens() const { return tokens_; }
  // Of the newest token; 0: the first of its stream, or not enough seen.
  double z() const { return z_; }
  // A greedy id that was not the likeliest, in the last kWindow tokens.
  bool saw_unlikely() const { return unlikely_until_ > 0 && tokens_ <= unlikely_until_; }

 private:
  static constexpr int kIds = 128, kLongestPeriod = 32, kWindow = 32, kJumps = 16, kSure = 8;

  // The last N values and their sum.
  template <int N>
  struct Window {
    std::array<float, N> values{};
    double sum = 0;
    int count = 0;
    // What falls out; only if full().
    float add(float x) {
      float& slot = values[size_t(count++ % N)];
      const float out = slot;
      sum += double(x) - out;
      slot = x;
      return out;
    }
    bool full() const { return count >= N; }
    double mean() const { return sum / std::min(count, N); }
  };

  void found(AnomalyKind kind, double value, double usual, bool once);
  void look_at_time(const TokenSeen& token, LaneUsual& lane);
  void look_at_reuse(const TokenSeen& token, LaneUsual& lane);
  void look_at_ids(int32_t id);
  void look_for_loops(int32_t id);
  void look_at_text(const TokenSeen& token);
  void look_at_logits(const TokenSeen& token);

  int tokens_ = 0;
  double z_ = 0;
  int unlikely_until_ = 0;
  uint32_t said_ = 0;  // by kind, of those that are said once
  std::array<OddToken, kMostKinds> found_{};
  int found_count_ = 0;

  std::array<int32_t, kIds> ids_{};                    // ring, by tokens_
  std::array<int16_t, kLongestPeriod + 1> repeats_{};  // by period: tokens that equal the one a period before
  Window<kJumps> jumps_;
  Baseline usual_jump_;
  Window<kWindow> chars_, control_;
  Window<kSure> unsure_;  // -log of the peak
  Baseline usual_unsure_;
};

}  // namespace sluice
