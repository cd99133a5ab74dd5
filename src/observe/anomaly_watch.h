// What all streams share of the look-out for odd tokens: what is usual in each lane, the step records that
// explain, the meters. Any thread; takes no lock.
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
  // Before the first stream, while others may ask for steps; null: causes go without step records.
  void set_ledger(const StepLedger* ledger) { ledger_.store(ledger); }

  // Of those that are still known.
  std::vector<StepRecord> steps_since(TimeNs from) const;

  LaneUsual& usual(Lane lane) { return usual_[size_t(lane)]; }
  // Fills facts.steps, and counts. A low reuse that nothing explains is none: prompts differ. False then.
  bool make(OddFacts facts, int token, Anomaly& out) const;
  // Of all streams together, so that a fault that strikes every stream does not fill the log.
  bool may_log(TimeNs now);

 private:
  std::atomic<const StepLedger*> ledger_{nullptr};
  std::array<LaneUsual, kLanes> usual_;
  std::array<std::array<Counter*, kAnomalyCauses>, kAnomalyKinds> counters_{};
  std::array<Counter*, kAnomalyCauses> excess_{};  // of slow tokens
  Counter& unlogged_;
  std::atomic<TimeNs> second_{0};
  std::atomic<int> logged_{0};  // in it
};

}  // namespace sluice
