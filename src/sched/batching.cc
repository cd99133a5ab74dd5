#include "sched/batching.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

BatchGate::BatchGate(const Batching& batching) : batching_(batching) {
  if (batching.kind == BatchingKind::continuous) open_through_ = std::numeric_limits<uint64_t>::max();
  const BatchWindow& w = batching.window;
  CHECK(w.max_batch >= 1 && w.max_wait_ns >= 0 && w.idle_ns >= 0);
  CHECK(w.span_ns == 0 || w.span_ns >= w.max_wait_ns, "a group would wait on though it cannot grow");
}

void BatchGate::ask(TimeNs now, bool running, std::span<Sequence* const> waiting, StepPlan& plan) {
  if (!gathering(running, waiting)) return;
  const int members = gathered(waiting);
  plan.flushed_by = due(now, members, *waiting.front());
  if (plan.flushed_by == FlushReason::none) return;
  plan.batch = members;
  open_through_ = waiting[size_t(members) - 1]->order;
}

TimeNs BatchGate::next_flush(bool running, std::span<Sequence* const> waiting) const {
  if (batching_.kind != BatchingKind::windowed || !gathering(running, waiting)) return 0;
  const BatchWindow& w = batching_.window;
  const TimeNs by_age = waiting.front()->arrived_at + w.max_wait_ns;
  return w.idle_ns ? std::min(by_age, last_arrival_ + w.idle_ns) : by_age;
}

// The last batch is over, and somebody waits for the next.
bool BatchGate::gathering(bool running, std::span<Sequence* const> waiting) const {
  return batching_.kind != BatchingKind::continuous && !running && !waiting.empty() &&
         !lets_in(*waiting.front());
}

// How many of the queue's head a batch would take.
int BatchGate::gathered(std::span<Sequence* const> waiting) const {
  if (batching_.kind == BatchingKind::serial) return 1;
  const BatchWindow& w = batching_.window;
  const TimeNs first = waiting.front()->arrived_at;
  const int most = int(std::min(waiting.size(), size_t(w.max_batch)));
  int n = 1;
  while (n < most && (w.span_ns == 0 || waiting[size_t(n)]->arrived_at - first <= w.span_ns)) ++n;
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
