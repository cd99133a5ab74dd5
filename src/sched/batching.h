// Which of those that wait may start: batching policies as values of one type, and the gate that keeps one.
//
// continuous  Everyone may, in order of arrival, whenever there is a slot, a budget and blocks.
// windowed    Dynamic batching. Arrivals gather; a flush makes a batch of the first of them; the next batch can
//             be flushed once nobody of this one runs or waits to run again, so a batch takes as long as its
//             longest member and nobody joins it later. A batch that is longer than a step's budget, or larger
//             than the pool, starts over several steps, in order.
// serial      One request at a time, in order of arrival: a batch of one, flushed without waiting.
//
// Owned by the engine thread. Time is passed in. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "sched/sequence.h"
#include "sched/step_plan.h"
#include "sched/waiting_queue.h"

namespace sluice {

enum class BatchingKind : uint8_t { continuous, windowed, serial };

constexpr const char* batching_name(BatchingKind kind) {
  return kind == BatchingKind::windowed ? "windowed" : kind == BatchingKind::serial ? "serial" : "continuous";
}

// Of `windowed`. A flush comes with the first of these that holds, asked only while no batch is under way:
//   size  max_batch requests have gathered
//   age   the oldest that waits arrived max_wait_ns ago
//   idle  something waits, and the last arrival of all was idle_ns ago
// What waited behind a long batch is therefore flushed as soon as that ends, if it is old enough by then.
struct BatchWindow {
  int max_batch = 128;               // requests in one batch, at most; >= 1, <= Policy::max_running
  TimeNs max_wait_ns = 100'000'000;  // >= 0; 0: whatever waits is flushed at once
  TimeNs idle_ns = 50'000'000;       // > 0; 0: this trigger is off
  // Requests of one batch arrived within so long after its first: the window begins at the oldest that waits
  // and slides on with every flush. It only cuts a backlog into batches: it is never shorter than max_wait_ns,
  // at which a group is flushed anyhow. 0: no bound.
  TimeNs span_ns = 200'000'000;

  bool operator==(const BatchWindow&) const = default;
};

struct Batching {
  BatchingKind kind = BatchingKind::continuous;
  BatchWindow window = {};  // of `windowed`

  bool operator==(const Batching&) const = default;
};

class BatchGate {
 public:
  explicit BatchGate(const Batching& batching) { set(batching); }

  // A batch that is under way ends as it began.
  void set(const Batching& batching);
  BatchingKind kind() const { return batching_.kind; }
  bool makes_batches() const { return batching_.kind != BatchingKind::continuous; }

  void note_arrival(const Sequence& s) { last_arrival_ = std::max(last_arrival_, s.arrived_at); }

  // Before sequences are admitted: how many fresh ones make the next batch now, if that is due, which is said
  // in `plan`; else 0. `quiet`: nothing of the last batch is left.
  int flush(TimeNs now, bool quiet, const WaitingQueue& queue, StepPlan& plan) const;
  // Whoever arrived later is of no batch that is flushed now.
  TimeNs last_to_join(const WaitingQueue& queue) const;

  AdmissionStop closed() const {
    return batching_.kind == BatchingKind::serial ? AdmissionStop::serial : AdmissionStop::window;
  }

  // The clock at which flush() will be due if nothing arrives or ends before; 0: no time alone makes it.
  TimeNs next_flush(bool quiet, const WaitingQueue& queue) const;

 private:
  int gathered(const WaitingQueue& queue) const;
  FlushReason due(TimeNs now, int gathered, const Sequence& first) const;

  Batching batching_;
  TimeNs last_arrival_ = std::numeric_limits<TimeNs>::min();
};

}  // namespace sluice
