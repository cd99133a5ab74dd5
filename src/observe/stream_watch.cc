#include "observe/stream_watch.h"

#include <cstdlib>

namespace sluice {
namespace {

// An interval is odd by all of these: a lane that is very regular makes large z-scores of little.
constexpr int kFewIntervals = 32;
constexpr double kOddZ = 6, kOddTimes = 3, kOddMs = 10;
constexpr double kLeastDeviation = 0.05;  // of the mean

constexpr double kLittleReuse = 0.5;
constexpr int kFewPrompts = 8;

constexpr double kMuchControl = 0.15;
constexpr int kFewChars = 8, kFewControl = 4;

constexpr double kFarIds = 2048, kOddDeviations = 3;  // with 2, one false alarm in 12 answers of SmolLM2
constexpr int kFewJumps = 32;

// A loop is three further rounds, and no fewer tokens than this.
constexpr int kRounds = 3, kFewRepeated = 24;

constexpr double kFarNats = 1.5;
constexpr int kFewUnsure = 24;

}  // namespace

double StreamWatch::z_score(double interval_ms, const LaneUsual& lane) {
  const Baseline& usual = lane.interval_ms;
  if (usual.count() < kFewIntervals || interval_ms < 0) return 0;
  const double mean = usual.mean(), deviation = std::max(usual.deviation(), kLeastDeviation * mean);
  return deviation > 0 ? (interval_ms - mean) / deviation : 0;
}

std::span<const OddToken> StreamWatch::push(const TokenSeen& token, LaneUsual& lane) {
  found_count_ = 0;
  ++tokens_;
  if (token.logits == LogitsState::unlikely) unlikely_until_ = tokens_ + kWindow;
  look_at_time(token, lane);
  look_at_reuse(token, lane);
  look_at_logits(token);
  look_at_text(token);
  look_at_ids(token.id);
  look_for_loops(token.id);
  ids_[size_t(tokens_ % kIds)] = token.id;
  return {found_.data(), size_t(found_count_)};
}

void StreamWatch::found(AnomalyKind kind, double value, double usual, bool once) {
  const uint32_t bit = 1u << int(kind);
  if (once && (said_ & bit)) return;
  said_ |= bit;
  if (found_count_ < kMostKinds) found_[size_t(found_count_++)] = {kind, value, usual};
}

void StreamWatch::look_at_time(const TokenSeen& token, LaneUsual& lane) {
  z_ = z_score(token.interval_ms, lane);
  if (token.interval_ms < 0) return;
  const double mean = lane.interval_ms.mean();
  const bool odd = z_ > kOddZ && token.interval_ms > kOddTimes * mean && token.interval_ms - mean > kOddMs;
  if (odd) found(AnomalyKind::slow_token, token.interval_ms, mean, false);
  // One that is odd must not make the next of its kind usual at once; many of them will.
  const double most = mean + kOddZ * std::max(lane.interval_ms.deviation(), kLeastDeviation * mean);
  lane.interval_ms.add(odd ? std::min(token.interval_ms, most) : token.interval_ms);
}

void StreamWatch::look_at_reuse(const TokenSeen& token, LaneUsual& lane) {
  if (tokens_ > 1) {
    if (token.kv_hit < kLittleReuse) found(AnomalyKind::low_reuse, token.kv_hit, 1, false);
    return;
  }
  const double usual = lane.prompt_reuse.mean();
  if (lane.prompt_reuse.count() >= kFewPrompts && usual > kLittleReuse && token.kv_hit < usual / 2)
    found(AnomalyKind::low_reuse, token.kv_hit, usual, false);
  lane.prompt_reuse.add(token.kv_hit);
}

// Single jumps are as long as a vocabulary; the mean of some is steady. Those that have left the window are
// what it is compared with.
void StreamWatch::look_at_ids(int32_t id) {
  if (tokens_ < 2) return;
  const auto jump = float(std::abs(id - ids_[size_t((tokens_ - 1) % kIds)]));
  const bool full = jumps_.full();
  const float left = jumps_.add(jump);
  if (full && !(said_ & 1u << int(AnomalyKind::id_jumps))) usual_jump_.add(left);
  if (usual_jump_.count() < kFewJumps) return;
  const double beyond = jumps_.mean() - usual_jump_.mean();
  if (beyond > std::max(kFarIds, kOddDeviations * usual_jump_.deviation()))
    found(AnomalyKind::id_jumps, jumps_.mean(), usual_jump_.mean(), true);
}

void StreamWatch::look_for_loops(int32_t id) {
  for (int period = 1; period <= kLongestPeriod && period < tokens_; ++period) {
    int16_t& run = repeats_[size_t(period)];
    run = ids_[size_t((tokens_ - period) % kIds)] == id ? int16_t(std::min(run + 1, 30000)) : int16_t(0);
    if (run >= std::max(kRounds * period, kFewRepeated)) found(AnomalyKind::repetition, period, 0, true);
  }
}

void StreamWatch::look_at_text(const TokenSeen& token) {
  chars_.add(float(token.chars));
  control_.add(float(token.control));
  if (chars_.sum < kFewChars || control_.sum < kFewControl) return;
  const double share = control_.sum / chars_.sum;
  if (share > kMuchControl) found(AnomalyKind::control_text, share, kMuchControl, true);
}

void StreamWatch::look_at_logits(const TokenSeen& token) {
  if (token.logits == LogitsState::nan) return found(AnomalyKind::nan_logits, 1, 0, true);
  if (token.logits == LogitsState::flat) return found(AnomalyKind::flat_logits, 1, 0, true);
  if (token.peak <= 0) return;
  const auto nats = float(-std::log(double(token.peak)));
  const bool full = unsure_.full();
  const float left = unsure_.add(nats);
  if (full) usual_unsure_.add(left);
  if (usual_unsure_.count() < kFewUnsure) return;
  const double beyond = unsure_.mean() - usual_unsure_.mean();
  if (beyond > std::max(kFarNats, kOddDeviations * usual_unsure_.deviation()))
    found(AnomalyKind::sudden_entropy, unsure_.mean(), usual_unsure_.mean(), true);
}

}  // namespace sluice
