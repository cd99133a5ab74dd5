#include "observe/anomaly_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {
namespace {

constexpr int kLinesPerSecond = 10;
constexpr int64_t kEvictedBefore = 256;  // steps that an eviction may be past
constexpr int64_t kUsual = 16;           // steps that tell what is usual

}  // namespace

AnomalyWatch::AnomalyWatch()
    : unlogged_(meter::counter("sluice_token_anomalies_unlogged_total",
                               "Odd tokens beyond ten a second, which are in no log.")) {
  for (int k = 0; k < kAnomalyKinds; ++k)
    for (int c = 0; c < kAnomalyCauses; ++c)
      if (is_cause_of(AnomalyCause(c), AnomalyKind(k)))
        counters_[size_t(k)][size_t(c)] = &meter::counter(
            "sluice_token_anomalies_total", "Odd tokens, by what is odd and by the root of why.",
            fmt::format("kind=\"{}\",cause=\"{}\"", anomaly_name(AnomalyKind(k)), cause_name(AnomalyCause(c))));
  for (int c = 0; c < kAnomalyCauses; ++c)
    if (is_cause_of(AnomalyCause(c), AnomalyKind::slow_token))
      excess_[size_t(c)] =
          &meter::counter("sluice_slow_token_seconds_total",
                          "Time that slow tokens took beyond what is usual, by the root of why.",
                          fmt::format("cause=\"{}\"", cause_name(AnomalyCause(c))), 1e-9);
}

bool AnomalyWatch::make(OddFacts f, int token, const StepLedger* ledger, Anomaly& out) const {
  std::vector<StepRecord> steps;
  if (ledger != nullptr)
    steps = ledger->between(f.step_before == 0 ? f.step - kEvictedBefore : f.step_before - kUsual, f.step + 1);
  f.steps = steps;
  out = {f.kind, token, int(f.step), f.to, f.value, f.usual, explain(f)};
  if (f.kind == AnomalyKind::low_reuse && out.cause() == AnomalyCause::unknown) return false;
  counters_[size_t(f.kind)][size_t(out.cause())]->add();
  if (f.kind == AnomalyKind::slow_token)
    excess_[size_t(out.cause())]->add(uint64_t(std::max(0.0, (f.value - f.usual) * 1e6)));
  return true;
}

bool AnomalyWatch::may_log(TimeNs now) {
  constexpr TimeNs kSecond = 1'000'000'000;
  TimeNs second = second_.load(std::memory_order_relaxed);
  if (now - second >= kSecond && second_.compare_exchange_strong(second, now)) logged_.store(0);
  if (logged_.fetch_add(1, std::memory_order_relaxed) < kLinesPerSecond) return true;
  unlogged_.add();
  return false;
}

}  // namespace sluice
