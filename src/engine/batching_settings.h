// Batching as it is set in sluice.yaml, and the one policy that comes of it.
#pragma once

#include <string>

#include "base/result.h"
#include "sched/batching.h"

namespace sluice {

struct BatchingSettings {
  std::string
      policy;  // scheduler.policy: continuous, windowed, serial; empty: as `dynamic` says, else continuous

  // inference.dynamic_batching: `windowed`, flushed by size or by the first arrival's age.
  struct Dynamic {
    bool enabled = false;
    int max_batch_size = 32;         // requests
    int batch_wait_timeout_ms = 15;  // age of the oldest that waits; 0: no waiting
  } dynamic;

  // scheduler.window: `windowed`, the sliding form (BatchWindow in sched/batching.h says what each does).
  struct Window {
    int window_ms = 200;
    int max_batch_size = 128;  // requests
    int min_trigger_interval_ms = 50;
    int batch_timeout_ms = 100;
    bool operator==(const Window&) const = default;
  } window;
};

// Errors (kInvalidArgument, field set): a number out of its range, keys that contradict each other.
// `max_sequences` is engine.max_sequences; 0: automatic, which then leaves room for a whole batch.
Result<Batching> batching_of(const BatchingSettings& settings, int max_sequences);

// "windowed: batches of up to 32 requests, after 15 ms": a line for the log.
std::string describe(const Batching& batching);

}  // namespace sluice
