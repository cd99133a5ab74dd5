#include "sched/batching.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

void BatchGate::set(const Batching& batching) {
  const BatchWindow& w = batching.window;
  CHECK(w.max_batch >= 1 && w.max_wait_ns >= 0 && w.idle_ns >= 0);
  CHECK(w.span_ns == 0 || w.span_ns >= w.max_wait_ns, "a group would wait on though it cannot grow");
  batching_ = batching;
}

int BatchGate::flush(TimeNs now, bool quiet, const WaitingQueue& queue, StepPlan& plan) const {
  if (!makes_batches() || !quiet || queue.fresh().empty()) return 0;
  const int members = gathered(queue);
  plan.flushed_by = due(now, members, *queue.fresh().front());
  if (plan.flushed_by == FlushReason::none) return 0;
  plan.batch = members;
  return members;
}

TimeNs BatchGate::next_flush(bool quiet, const WaitingQueue& queue) const {
  if (batching_.kind != BatchingKind::windowed || !quiet || queue.fresh().empty()) return 0;
  const BatchWindow& w = batching_.window;
  const TimeNs by_age = queue.fresh().front()->arrived_at + w.max_wait_ns;
  return w.idle_ns ? std::min(by_age, last_arrival_ + w.idle_ns) : by_age;
}

TimeNs BatchGate::last_to_join(const WaitingQueue& queue) const {
  const bool bound = batching_.kind == BatchingKind::windowed && batching_.window.span_ns > 0;
  return bound ? queue.fresh().front()->arrived_at + batching_.window.span_ns : WaitingQueue::kWhenever;
}

// How many a batch would take, counted from the oldest that waits.
int BatchGate::gathered(const WaitingQueue& queue) const {
  if (batching_.kind == BatchingKind::serial) return 1;
  const TimeNs last = last_to_join(queue);
  int n = 0;
  for (const Sequence* s = queue.fresh().front(); s && n < batching_.window.max_batch && s->arrived_at <= last;
       s = s->arrival.next)
    ++n;
  return n;
}

FlushReason BatchGate::due(TimeNs now, int gathered, const Sequence& first) const {
  if (batching_.kind == BatchingKind::serial) return FlushReason::serial;
  const BatchWindow& w = batching_.window;
  if (gathered >= w.max_batch) return FlushReason::size;
  if (now - first.arrived_at >= w.max_wait_ns) return FlushReason::age;
  if (w.idle_ns && now - last_arrival_ >= w.idle_ns) return FlushReason::idle;
  return FlushReason::none;
}

}  // namespace sluice
