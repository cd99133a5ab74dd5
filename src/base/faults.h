// Faults that tests plant in a running program: places in the code that misbehave when, and only when, a plan
// says so. Compiled into every binary, so that what is tested is what is shipped; armed by cli alone, from the
// environment variable SLUICE_FAULTS, with a warning in the log. Not armed, a place costs one load and a branch
// that is never taken.
//
//   SLUICE_FAULTS="seed=7; short_write:rate=0.1,amount=3; nan_logits:request=odd,from=12,amount=4"
//
// A place meets its fault again and again, and each time has a number n: of steps and rows that belong to a
// request, which token of its answer is being computed (1: the first); of steps, when the rule names no
// request, the step's number; elsewhere how often the place has been met. A rule strikes where n >= from and
// (n - from) is a multiple of `every`, at most `count` times, each time with probability `rate`. Chance is a
// hash of seed, rule and n: the same plan over the same course of things strikes at the same places.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

// Whose `amount` means what stands behind it. Those of the first group know the request that they meet.
enum class Fault : uint8_t {
  nan_logits,    // layer whose feed-forward gives NaN. CPU
  flat_logits,   // what the last norm gives is 0, so all logits are equal. CPU
  weak_logits,   // what the last norm gives is a tenth of what it is, so nothing is likely. CPU
  control_ids,   // the sampler gives this id, whatever the logits say. CPU
  id_jumps,      // it gives ids from all over the vocabulary. CPU
  repetition,    // it gives three ids, from this one on, in turns. CPU
  preempt,       // gives up its blocks
  step_failure,  // the step's results are no good: its requests fail, the server goes on
  slow_step,     // ms that the executor's thread computes for nothing
  graph_miss,    // launched op by op although it was recorded

  cpu_stall,         // ms that the engine's thread computes for nothing before a step
  off_cpu,           // ms that it does not run, as if others had its core
  engine_alloc,      // allocations that it makes in a turn
  evict_cache,       // blocks of the prefix cache that are given up; 0: all
  clock_jump,        // ms that the clock moves by; may be negative
  device_error,      // the device is lost, and with it the process
  engine_exception,  // nobody expects it, so it ends the process; 0: on the engine's thread; 1: on the
                     // executor's

  alloc_failure,    // 0: no memory for a request that comes; std::bad_alloc, 1: as it is read, 2: as the engine
                    // is handed it, 3: as its answer is made, 4: as a connection is accepted, 5: as bytes are
                    // taken in
  short_write,      // bytes that the socket takes at most; at least 1
  short_read,       // bytes that it gives at most; at least 1
  eagain,           // 1: it gives none now; 2: it takes none; 0: either
  kill_connection,  // 1: while it reads a request; 2: while it sends an answer; 0: either; from 3 on: in one
                    // state
  disk_full,        // a block cannot be written to its file
  slow_disk,        // ms that the disk takes longer
};
inline constexpr int kFaults = int(Fault::slow_disk) + 1;
std::string_view fault_name(Fault fault);

struct FaultRule {
  Fault fault = Fault::slow_step;
  double rate = 1;
  int64_t from = 1, every = 1;
  int64_t count = std::numeric_limits<int64_t>::max();
  int64_t amount = 0;
  std::string request;  // ids that begin so; empty: all
};

struct FaultPlan {
  uint64_t seed = 0;
  std::vector<FaultRule> rules;
};

// Errors name what is wrong and what there is: an unknown fault or key, a number out of range, a request given
// for a place that knows none.
Result<FaultPlan> parse_faults(std::string_view text);

namespace faults {

namespace detail {
inline std::atomic<bool> armed{false};
}
inline bool armed() { return detail::armed.load(std::memory_order_relaxed); }

// Replaces the plan. While nothing that meets faults runs: at start, or between tests.
void arm(FaultPlan plan);
void disarm();

// The amount of the first rule that strikes; nothing: all is well. Ask armed() first. Any thread.
std::optional<int64_t> met(Fault fault);             // n: how often it was met
std::optional<int64_t> met(Fault fault, int64_t n);  // rules that name no request
std::optional<int64_t> met(Fault fault, std::string_view request, int64_t nth_token);  // rules that do
// A place that has several names: rules whose amount is one of them. n: the number given, else how often such a
// rule's places were met.
bool met_at(Fault fault, std::initializer_list<int64_t> names, std::optional<int64_t> n = {});

// Computes for nothing: the thread stays on its core.
void burn_ms(int64_t ms);

}  // namespace faults
}  // namespace sluice
