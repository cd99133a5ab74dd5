// What an observer sees of a step: one plain record per step, kept in a ring that any thread may read while the
// engine thread writes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "sched/step_plan.h"

namespace sluice {

// How a step came to the device.
enum class GraphUse : uint8_t {
  none,  // op by op: not of the kind that is recorded, or nothing is recorded
  miss,  // recorded by this very step
  hit,   // replayed
};
constexpr const char* graph_use_name(GraphUse use) {
  return use == GraphUse::hit ? "hit" : use == GraphUse::miss ? "miss" : "none";
}

// The first op of a step that gave something broken (Decoder's names), as found by computing the step again
// with a look at what each op gives. `op` null: nobody looked, or nothing was found.
struct BrokenOp {
  const char* op = nullptr;
  int32_t layer = -1;  // -1: of no layer
};

struct StepRecord {
  int64_t step = 0;

  // Times. planned_at .. + plan_ns: the plan; + build_ns: the arrays; then the queue of the executor.
  // launch_ns: the host's part, where the device works behind it. execute_at .. + execute_ns: the device, by
  // its own clock if it has one (execute_at is then reckoned back from when the end was seen). commit_ns:
  // results taken back. idle_ns: the device had nothing to do before this step; gap_ns: of that, while there
  // was work for it.
  TimeNs planned_at = 0, plan_ns = 0, build_ns = 0, launch_ns = 0;
  TimeNs execute_at = 0, execute_ns = 0, commit_ns = 0, idle_ns = 0, gap_ns = 0;
  // On a card, by its clock: its kernels, results written to host memory by the last of them included; with
  // gpu.copy_times also copies to it and to the host (StepTimes). They overlap with other steps' kernels.
  TimeNs kernels_ns = 0, to_device_ns = 0, to_host_ns = 0;

  // The batch's shape.
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t one_token_sequences = 0;
  int32_t logit_rows = 0;
  int32_t longest_context = 0;
  int64_t context_tokens = 0;  // cached tokens that its sequences attend to, summed
  int32_t padding = 0;         // rows beyond `tokens`, up to the bucket of a recorded step
  GraphUse graph = GraphUse::none;

  // The state it was planned in.
  int32_t running = 0, waiting = 0;
  int32_t blocks_used = 0, blocks_total = 0;

  // What happened, and why.
  int32_t admitted = 0, preempted = 0, held_back = 0, paused = 0;
  AdmissionStop stopped_by = AdmissionStop::none;
  FlushReason flushed_by = FlushReason::none;  // a batch began with this step
  int32_t batch = 0;                           // then its requests
  // Prompt tokens of newcomers: looked up in the prefix cache, and found there; found by those that resumed.
  int32_t looked_up_tokens = 0, cached_tokens = 0, resumed_tokens = 0;
  // Of all that were found, those that come from outside the pool. Blocks that this step copied from there or
  // to there, and how long that took (0: not known).
  int32_t host_tokens = 0, disk_tokens = 0, host_blocks = 0;
  TimeNs host_copy_ns = 0;
  int32_t sampled = 0, discarded = 0, ended = 0;

  // Blocks of sequences whose decoding is sparse, over groups that see everything: all, and those that a
  // layer's head reads.
  int32_t sparse_blocks = 0, sparse_blocks_read = 0;

  // What explains a step that took long (observe/anomaly_causes.h). Off the processor: the thread was ready to
  // run and did not, in parts in which it waits for nothing: wall time less its CPU time. Of the engine's
  // thread in plan, build and commit; of the executor's in launch.
  TimeNs engine_off_cpu_ns = 0, launch_off_cpu_ns = 0;
  TimeNs ended_unix_ns = 0;    // by the wall clock, when its results were taken back
  int64_t allocations = 0;     // of the engine's thread for it; once warm, none
  int32_t evicted = 0;         // blocks of the prefix cache that were given up since the step before
  int32_t moved = 0;           // blocks that changed their precision or place with it
  int32_t longest_prompt = 0;  // tokens that it computed of one prompt, at most
  uint32_t longest_prompt_tenant = 0;
  bool failed = false;  // its results are no good
  BrokenOp broken;

  // Work as counted from shapes, not measured.
  int64_t weight_bytes = 0, kv_read_bytes = 0, kv_write_bytes = 0;
  double flops = 0;
  // Of sequences with several rows, summed over layer groups: (row, cached token) pairs; cached tokens in front
  // of these rows.
  double prompt_pairs = 0;
  int64_t prompt_context_tokens = 0;
};
static_assert(std::is_trivially_copyable_v<StepRecord>);

// One line for people.
std::string describe(const StepRecord& record);

// The last kCapacity records. One writer (the engine thread), any readers. Each cell is a seqlock whose payload
// is atomic words, so that a reader that lost the race merely reads again.
class StepLedger {
 public:
  static constexpr size_t kCapacity = 1024;
  StepLedger();
  void write(const StepRecord& record);
  // The newest `count` records, oldest first. Those overwritten while reading are left out.
  std::vector<StepRecord> last(size_t count) const;
  // Those of steps `first` to `last` that are known, in order.
  std::vector<StepRecord> between(int64_t first, int64_t last) const;
  uint64_t written() const { return written_.load(std::memory_order_acquire); }

 private:
  static constexpr size_t kWords = (sizeof(StepRecord) + 7) / 8;
  struct Cell {
    std::atomic<uint64_t> turn{0};  // odd while being written
    std::array<std::atomic<uint64_t>, kWords> words{};
  };
  bool read(uint64_t index, StepRecord& out) const;
  std::unique_ptr<Cell[]> cells_;
  std::atomic<uint64_t> written_{0};
};

}  // namespace sluice
