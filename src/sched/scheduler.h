// Who computes what in the next step. Sequences join (when the batching policy lets them, batching.h) and leave
// between steps; those that need one token come first, then prompts in chunks under the token budget; blocks
// are taken when a token needs them, and taken back from the newest when the pool runs short.
//
// Owned by the engine thread. Time is passed in. Nothing allocates after construction.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "sched/batching.h"
#include "sched/step_plan.h"

namespace sluice {

// How to schedule, as a value.
struct Policy {
  int max_running = 64;  // sequences that hold a slot
  int step_tokens =
      512;  // of one step, all sequences together; >= max_running, so one-token sequences always fit
  int mixed_prompt_tokens =
      0;  // of prompts in a step that also has one-token sequences; at most; 0: step_tokens is the limit
  int max_queue = 1024;    // waiting for their first admission
  int min_progress = 16;   // tokens generated since it was admitted before a sequence is a preferred victim
  Batching batching = {};  // who may start when
};

class Scheduler {
 public:
  // `blocks` must suffice for one sequence of layout.max_length alone: that is what makes every request finish.
  Scheduler(const Policy& policy, const KvLayout& layout, int blocks);

  // Queues a sequence, in order of arrival. False: the queue is full.
  bool add(Sequence* sequence);

  // Fills `plan` and counts its entries as in flight. Every plan that is not empty must land, in order.
  void plan(TimeNs now, StepPlan& plan);

  // The caller's word on an entry whose step is done: `end` != none ends the sequence with it. `sampled` is
  // appended to its ids (-1: the step sampled nothing of it). For a sequence that ended meanwhile both are
  // ignored.
  void land(const PlanEntry& entry, int32_t sampled, FinishReason end, TimeNs now);

  // Leaves planning at once; slot and blocks follow when nothing of it is in flight.
  void end(Sequence* sequence, FinishReason reason);

  std::span<Sequence* const> running() const {
    return running_;
  }  // by order; those that ended but still fly included
  std::span<Sequence* const> waiting() const { return waiting_; }  // by order; preempted ones first
  const BlockPool& blocks() const { return pool_; }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  // Whether a further request would be queued.
  bool has_room() const { return fresh_ < policy_.max_queue; }
  // The clock at which plan() has a deadline to enforce; 0: none.
  TimeNs next_deadline() const { return next_deadline_; }
  // The clock at which plan() begins a batch though nothing has arrived or landed; 0: no time alone makes it.
  TimeNs next_flush() const { return gate_.next_flush(!running_.empty(), waiting_); }
  const Policy& policy() const { return policy_; }

 private:
  struct PlanState;
  int count_generating() const;
  int mixed_budget(int generating) const;
  void expire(PlanState& state);
  void extend(PlanState& state, bool one_token);
  void admit(PlanState& state);

  bool fits(const Sequence& candidate) const;
  bool make_room(PlanState& state, const Sequence& needy, int missing);
  Sequence* victim_for(const Sequence& needy) const;
  bool take(PlanState& state, Sequence* sequence, int count);
  void start(Sequence* sequence, TimeNs now);
  void preempt(Sequence* sequence, TimeNs now);
  void release(Sequence* sequence);

  const Policy policy_;
  const KvLayout layout_;
  BlockPool pool_;
  BatchGate gate_;
  std::vector<std::unique_ptr<BlockTable>> tables_;  // [max_running] by slot
  std::vector<int> free_slots_;
  std::vector<Sequence*> running_;
  std::vector<Sequence*> waiting_;
  uint64_t next_order_ = 1;
  int fresh_ = 0;             // waiting and never admitted
  TimeNs next_deadline_ = 0;  // no deadline lies before it; 0: none at all
};

}  // namespace sluice
