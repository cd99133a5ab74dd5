// What all streams share of the look-out for odd tokens: what is usual in each lane, and the meters. The step
// records that explain are those of the engine that made the token. Any thread; takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "base/meter.h"
#include "engine/engine.h"
#include "observe/anomaly_causes.h"
#include "observe/stream_watch.h"

namespace sluice {

class AnomalyWatch {
 public:
  AnomalyWatch();
  LaneUsual& usual(Lane lane) { return usual_[size_t(lane)]; }
  // Fills facts.steps from `ledger`, and counts. A low reuse that nothing explains is none: prompts differ.
  // False then. `ledger` null: causes go without step records.
  bool make(OddFacts facts, int token, const StepLedger* ledger, Anomaly& out) const;
  // Of all streams together, so that a fault that strikes every stream does not fill the log.
  bool may_log(TimeNs now);

 private:
  std::array<LaneUsual, kLanes> usual_;
  std::array<std::array<Counter*, kAnomalyCauses>, kAnomalyKinds> counters_{};
  std::array<Counter*, kAnomalyCauses> excess_{};  // of slow tokens
  Counter& unlogged_;
  std::atomic<TimeNs> second_{0};
  std::atomic<int> logged_{0};  // in it
};

}  // namespace sluice
