// What clients of an engine and its loop share: how many requests there are, whether more are wanted, and the
// bell that the loop sleeps on. Streams hold it too, so a client may cancel after the engine has gone.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/bell.h"
#include "sched/lanes.h"

namespace sluice {

struct EngineDoor {
  explicit EngineDoor(bool shows = true) : shown(shows) {}

  Bell bell;                            // arrivals, cancellations, results, room in an outbox
  Bell emptied;                         // rung whenever the last request has gone
  std::atomic<int> live{0};             // requests submitted and not yet gone
  PerLane<std::atomic<int>> live_of{};  // the same by lane
  std::atomic<int> queued{0};           // of these, not yet admitted for the first time
  std::atomic<bool> draining{false};
  std::atomic<bool> cancel_all{false};
  std::atomic<bool> quit{false};     // the loop returns once nothing is live
  std::atomic<bool> shown;           // the gauges are this engine's
  std::atomic<uint64_t> cancels{0};  // grows with each cancellation; the loop looks for them only then

  void leave(Lane lane) {
    live_of[size_t(lane)].fetch_sub(1);
    if (live.fetch_sub(1) == 1) emptied.ring();
  }
};

}  // namespace sluice
