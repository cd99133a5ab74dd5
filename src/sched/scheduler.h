// Who computes what in the next step. Sequences join (when the batching policy lets them, batching.h) and leave
// between steps; those that need one token come first, then prompts in chunks that keep the step as short as
// those who generate are to have it (step_time.h); blocks are taken when a token needs them, and taken back
// from whoever has the least right to them when the pool runs short (scheduler_room.cc). Lanes (lanes.h) have
// shares of slots, blocks and step time that count while others want them, and lend them while nobody does.
//
// Owned by the engine thread. Time is passed in. Nothing allocates after construction.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/prefix_index.h"
#include "sched/batching.h"
#include "sched/deadline_heap.h"
#include "sched/lanes.h"
#include "sched/step_plan.h"
#include "sched/step_time.h"
#include "sched/transfer_rates.h"
#include "sched/waiting_queue.h"

namespace sluice {

// How to schedule, as a value. What is marked fixed must stay as it was at construction (set_policy).
struct Policy {
  int max_running = 64;  // fixed; sequences that hold a slot
  int step_tokens =
      512;  // fixed; of one step, all sequences together; >= max_running, so one-token sequences always fit
  int mixed_prompt_tokens =
      0;  // of prompts in a step that also has one-token sequences; at most; 0: step_tokens is the limit
  int max_queue = 1024;  // fixed; waiting for their first admission
  int min_progress =
      16;  // fixed; tokens generated since it was admitted before a sequence is a preferred victim
  Batching batching = {};    // who may start when
  TimeNs target_itl_ns = 0;  // between two tokens of a stream, beside prompts; 0: automatic (step_time.h)
  LaneWeights lane_weights = kDefaultLaneWeights;  // each from 1 to kMaxLaneWeight
  // Fixed; blocks keep their content when their last owner leaves, and are found again (scheduler_prefix.cc).
  bool prefix_cache = false;
};

// Over the sequences that run.
struct HeldTokens {
  int64_t planned = 0;       // tokens
  int64_t table_blocks = 0;  // per group: entries of their tables
};

class Scheduler {
 public:
  // `blocks` must suffice for one sequence of layout.max_length alone: that is what makes every request finish.
  // `host`, with policy.prefix_cache: where prefixes go besides the pool and are had from again; it outlives
  // this.
  Scheduler(const Policy& policy, const KvLayout& layout, int blocks, HostTier* host = nullptr);

  // Queues a sequence, in order of arrival. False: the queue is full.
  bool add(Sequence* sequence);

  // Fills `plan` and counts its entries as in flight. Every plan that is not empty must land, in order.
  void plan(TimeNs now, StepPlan& plan);

  // How long a step took to compute: the next ones are cut by it.
  void note_step(const StepPlan& plan, TimeNs took) { step_time_.note(plan, took); }
  TransferRates& transfer_rates() { return rates_; }

  // Once a step is done, before its entries land: its moves, and those between the pool and the host. Sequences
  // that only waited for these may be gone() afterwards.
  void land_moves(const StepPlan& plan, TimeNs now);

  // The caller's word on an entry whose step is done: `end` != none ends the sequence with it. `sampled` is
  // appended to its ids (-1: the step sampled nothing of it). For a sequence that ended meanwhile both are
  // ignored.
  void land(const PlanEntry& entry, int32_t sampled, FinishReason end, TimeNs now);

  // Leaves planning at once; slot and blocks follow when nothing of it is in flight.
  void end(Sequence* sequence, FinishReason reason);

  // Between plans, whatever runs or waits. The sizes must be those it was made with. A batch under way ends as
  // it began; who was chosen for one and has not started yet still starts.
  void set_policy(const Policy& policy);

  // By lane, in each by order; those that ended but still fly included.
  std::span<Sequence* const> running() const { return running_; }
  std::span<Sequence* const> running_of(int lane) const;
  const WaitingQueue& waiting() const { return queue_; }  // may be iterated over; preempted ones first
  const BlockPool& blocks() const { return pool_; }
  const HeldTokens& held_tokens() const { return held_tokens_; }
  bool idle() const { return running_.empty() && queue_.empty(); }
  // Whether a further request would be queued.
  bool has_room() const { return queue_.never_admitted() < policy_.max_queue; }
  // The clock at which plan() has a deadline to enforce; 0: none.
  TimeNs next_deadline() const { return deadlines_.first() ? deadlines_.first()->request.deadline : 0; }
  // The clock at which plan() begins a batch though nothing has arrived or landed; 0: no time alone makes it.
  TimeNs next_flush() const { return gate_.next_flush(quiet(), queue_); }
  // The clock at which plan() gives up waiting for blocks in files; 0: nobody waits for any.
  TimeNs next_restore_end() const;
  const Policy& policy() const { return policy_; }
  const StepTime& step_time() const { return step_time_; }
  // Between requests: what was computed is not found again.
  void forget_prefixes() {
    if (prefixes_) prefixes_->clear();
  }
  // The same for `most` blocks that nobody owns, the oldest first; 0: all.
  void give_up_cached(int most) {
    for (int i = 0; (most == 0 || i < most) && pool_.evict(); ++i) {
    }
  }
  const PrefixIndex* prefixes() const { return prefixes_.get(); }  // null: the cache is off

 private:
  struct PlanState;

  // Passes of a plan (scheduler.cc).
  void expire(PlanState& state);
  void survey(PlanState& state);
  void find_barrier(PlanState& state);
  void meet_faults(PlanState& state);  // scheduler_room.cc
  void extend_one_token(PlanState& state, int lane);
  void limit_prompts(PlanState& state);
  void extend_prompts(PlanState& state, int lane);
  void admit_lane(PlanState& state, int lane);
  void admit_by_hunger(PlanState& state);
  void admit_batch(PlanState& state);
  void restore(PlanState& state);      // scheduler_prefix.cc
  void convert_old(PlanState& state);  // scheduler_room.cc
  void save(PlanState& state);         // scheduler_prefix.cc

  bool admit(PlanState& state, Sequence* sequence);
  int grant(const PlanState& state, const Sequence& sequence) const;
  int least_chunk(const PlanState& state, int most) const;
  size_t extend(PlanState& state, size_t at, int count);
  double spent_so_far(const PlanState& state) const;
  bool expects_others(const Sequence& sequence) const;
  bool contended(const PlanState& state, int lane) const;
  double left_of_target(const PlanState& state, double share) const;
  void earn(PlanState& state, int lane);
  bool take(PlanState& state, Sequence* sequence, int count);
  void start(PlanState& state, Sequence* sequence, const PrefixMatch& match, const StoredMatch& stored);
  bool quiet() const { return running_.empty() && !queue_.has_chosen() && !queue_.has_preempted(); }

  // What need not be computed again (scheduler_prefix.cc).
  PrefixMatch find_prefix(const Sequence& candidate) const;
  StoredMatch find_stored(const Sequence& candidate, const PrefixMatch& match) const;
  bool comes_soon(const Sequence& candidate, int found_tokens) const;
  void take_over(PlanState& state, Sequence& sequence, const PrefixMatch& match);
  void take_over(PlanState& state, Sequence& sequence, const StoredMatch& match);
  void count_found(PrefixCounts& counts, Sequence& sequence, int tokens) const;
  void keep_landed(Sequence& sequence);
  size_t restore_of(PlanState& state, Sequence& sequence, size_t bytes);
  bool give_up_restoring(PlanState& state, Sequence& sequence);
  void end_restoring(Sequence& sequence);
  void stop_restoring(Sequence& sequence);
  TimeNs patience(int tokens) const;
  void settle(Sequence* sequence, TimeNs now);

  // Slots and blocks, and who gives them up (scheduler_room.cc).
  int slots_for(const PlanState& state, int lane) const;
  int blocks_for(const PlanState& state, int lane) const;
  int promised(PlanState& state) const;
  int needed_by(const Sequence& candidate, const PrefixMatch& match) const;
  int needed_by(const Sequence& candidate, const StoredMatch& match) const;
  bool may_return(const PlanState& state, const Sequence& candidate) const;
  bool make_room(PlanState& state, const Sequence& needy, int missing);
  void make_room_for(PlanState& state, const Sequence& candidate, AdmissionStop stop, int needed);
  Sequence* victim_for(const PlanState& state, const Sequence& needy, int missing) const;
  bool is_lent(const PlanState& state, const Sequence& victim) const;
  bool is_first(const Sequence& needy) const;
  void give_way(PlanState& state, Sequence* victim);
  void preempt(Sequence* sequence, TimeNs now);
  void requeue(Sequence* sequence);
  void release(Sequence* sequence);

  Policy policy_;
  const KvLayout layout_;
  BlockPool pool_;
  std::unique_ptr<PrefixIndex> prefixes_;  // null: the cache is off
  HostTier* const host_;                   // null: there is none
  uint64_t evicted_before_ = 0;            // blocks, when the last plan was made
  // What a sequence waits for that comes from outside the pool.
  struct Restoring {
    std::vector<PendingBlock> pending;
    StoredMatch match;
    TimeNs until = 0;  // when it is given up, if blocks are still in files then; 0: never
  };
  std::vector<Restoring> restoring_;  // [max_running] by slot
  PrefixCounts came_;                 // since the last plan, which tells of it
  TransferRates rates_;
  BatchGate gate_;
  StepTime step_time_;
  std::vector<std::unique_ptr<BlockTable>> tables_;  // [max_running] by slot
  std::vector<int> free_slots_;
  std::vector<Sequence*> running_;
  HeldTokens held_tokens_;
  WaitingQueue queue_;
  DeadlineHeap deadlines_;
  uint64_t next_order_ = 1;

  // What each lane held lately, at most: that much of its share is not lent, so that lending and taking back do
  // not alternate. Falls by an eighth a second.
  struct Use {
    int slots = 0, blocks = 0;
  };
  PerLane<Use> lately_{};
  TimeNs lately_at_ = 0;
  PerLane<double> credit_{};  // ns of step time that a lane has earned beside others and not had yet
};

}  // namespace sluice
