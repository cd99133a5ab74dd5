// What one step computes: tokens of sequences. Whether they are a prompt, a chunk of one, or the token sampled
// last is all the same here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/lanes.h"
#include "sched/sequence.h"

namespace sluice {

struct PlanEntry {
  Sequence* sequence = nullptr;
  int first = 0;         // position of its first token in this step
  int count = 0;         // tokens
  bool samples = false;  // the last of them is the last that is known: the next is sampled from it
};

// What kept the first waiting sequence out of this step; `window` and `serial`: the batching policy did, since
// it belongs to a later batch; `prefix`: another is just computing a long beginning of it (kv/prefix_index.h).
enum class AdmissionStop : uint8_t { none, slots, blocks, budget, slow_client, window, serial, prefix };

constexpr const char* admission_stop_name(AdmissionStop stop) {
  switch (stop) {
    case AdmissionStop::none:
      return "none";
    case AdmissionStop::slots:
      return "slots";
    case AdmissionStop::blocks:
      return "blocks";
    case AdmissionStop::budget:
      return "budget";
    case AdmissionStop::slow_client:
      return "slow_client";
    case AdmissionStop::window:
      return "window";
    case AdmissionStop::serial:
      return "serial";
    case AdmissionStop::prefix:
      return "prefix";
  }
  return "?";
}

// Why a batch began in this step (batching.h).
enum class FlushReason : uint8_t { none, size, age, idle, serial };

constexpr const char* flush_reason_name(FlushReason reason) {
  switch (reason) {
    case FlushReason::none:
      return "none";
    case FlushReason::size:
      return "size";
    case FlushReason::age:
      return "age";
    case FlushReason::idle:
      return "idle";
    case FlushReason::serial:
      return "serial";
  }
  return "?";
}

// A block between the pool and host memory (kv/host_tier.h).
struct HostMove {
  KvRef block = kNoKvRef;  // in the pool
  KvRef place = kNoKvRef;  // in host memory
  int entry = -1;
  Sequence* to = nullptr;  // who waits for it; null: the block goes to the host
};

// Prompt tokens of those admitted for the first time that were looked up in the prefix cache, and found; tokens
// found by those that resumed. What comes from outside the pool counts once it is there.
struct PrefixCounts {
  int looked_up_tokens = 0, cached_tokens = 0, resumed_tokens = 0;
  int missed_evicted_tokens = 0;         // of those looked up: not found, but there not long ago
  int host_tokens = 0, disk_tokens = 0;  // of those found, the ones that were not in the pool
};

struct StepPlan : PrefixCounts {
  std::vector<PlanEntry> entries;  // one per sequence; capacity for all that may run
  // To be made before the step's ops. Copies: content that a sequence goes on from in a block of its own;
  // capacity for all slots. Moves: blocks that go to another place; none depends on another or on a copy.
  std::vector<BlockMove> copies, moves;
  // To be made beside the ops, before those of the next step. Those of one sequence stand together.
  std::vector<HostMove> host_moves;
  std::vector<Sequence*> expired;  // ended by their deadline while planning; the caller tells their clients
  int tokens = 0;
  int admitted = 0;
  int preempted = 0;  // gave up their blocks, or will when they land
  PerLane<int> preempted_of{};
  int held_back = 0;  // wanted tokens but got no block in this step
  AdmissionStop stopped_by = AdmissionStop::none;
  FlushReason flushed_by = FlushReason::none;  // a batch began, by a policy that makes batches
  int batch = 0;                               // then its members; they may take several steps to be admitted

  // Room for all that may ever be in it.
  void reserve(int max_running, int max_queue, const KvLayout& layout = {.windows = {0}},
               int most_host_moves = 0) {
    host_moves.reserve(size_t(most_host_moves));
    copies.reserve(size_t(max_running) * size_t(layout.groups()));
    moves.reserve(size_t(layout.most_moves()));
    entries.reserve(size_t(max_running));
    expired.reserve(size_t(max_running) * 2 + size_t(max_queue));
  }
  // A plan of moves alone makes room for those who were held back, or brings blocks to and from the host.
  bool empty() const { return entries.empty() && moves.empty() && host_moves.empty(); }
  void reset() {
    entries.clear();
    copies.clear();
    moves.clear();
    host_moves.clear();
    expired.clear();
    preempted_of = {};
    tokens = admitted = preempted = held_back = batch = 0;
    static_cast<PrefixCounts&>(*this) = {};
    stopped_by = AdmissionStop::none;
    flushed_by = FlushReason::none;
  }
};

}  // namespace sluice
