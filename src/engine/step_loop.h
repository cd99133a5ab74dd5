// The engine thread: what happens in which order. It alone owns scheduler, blocks and sequences.
//
// It sleeps on one bell, rung by arrivals, cancellations and a step's result; so when idle it waits for the
// inbox, and when two steps are in flight for the older one's result. A warm turn allocates nothing.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/answer_mask.h"
#include "engine/batch_builder.h"
#include "engine/disk_thread.h"
#include "engine/engine_door.h"
#include "engine/engine_meters.h"
#include "engine/executor.h"
#include "engine/live_request.h"
#include "engine/make_engine.h"
#include "engine/step_record.h"
#include "sched/scheduler.h"

namespace sluice {

TokenLogprobs logprobs_of(const SampleResult& result);

struct StepLoopParts {
  Policy policy;
  KvLayout layout;
  int blocks = 0;
  size_t slot_bytes = 0;  // of a block in full precision
  ModelCost cost;
  int vocab = 0;
  bool replay = false;  // the runner records steps (replay_buckets.h)
  KvOutside outside = {};
};

class StepLoop {
 public:
  StepLoop(const StepLoopParts& parts, StepRunner& runner, EngineDoor& door, EngineMeters& meters);
  ~StepLoop();

  // Any thread, which then rings the door's bell. The inbox has room for all that EngineDoor::queued admits.
  void hand_over(std::unique_ptr<LiveRequest> request);

  // Any thread. Taken up before the next plan. False: several wait already.
  bool replace_policy(Policy policy);

  // Engine thread, until EngineDoor::quit and nothing is live.
  void run();
  // Before run(), on any one thread: computes throwaway prompts and, with replay, records a step of every
  // bucket in both slots, so that the first request finds everything touched.
  void warm_up(const WarmUp& wish);

  // Any thread. Requests are handed over with their blocks named (Sequence::name_blocks).
  bool names_blocks() const { return host_ != nullptr; }
  const StepLedger& ledger() const { return ledger_; }
  const Executor& executor() const { return executor_; }
  EngineStatus status() const;

 private:
  TimeNs wake_at() const;
  bool is_unwanted(const LiveRequest& live) const;
  FinishReason why_unwanted(const LiveRequest& live) const;
  void drain_inbox();
  void take_up_policies();
  void drop_cancelled();
  bool launch_next();
  bool commit_finished();
  void publish_status();
  void show(Gauge& gauge, double value) {
    if (shown_) gauge.set(value);
  }
  void publish_kv();
  void publish_outside();
  void hear_of_files();
  void forget_restored(const StepPlan& plan);

  int pause_slow_clients();
  void ask_for_mask(LiveRequest& live, int32_t sampled);
  void look_at_masks();
  void queue_up(LiveRequest& live);
  void queue_ready();
  void note_admissions(const StepPlan& plan, TimeNs planned_by);
  void activate(const Step& step, TimeNs now);
  void rest(LiveRequest& live, TimeNs now);
  void note_preemption(LiveRequest& live);
  void commit(Step& step, size_t index, TimeNs now);
  FinishReason end_reason(const LiveRequest& live, int32_t id) const;
  void keep_prompt_logprobs(LiveRequest& live, std::span<const SampleResult> results);
  void account(LiveRequest& live, const PlanEntry& entry);
  float kv_hit(LiveRequest& live, const PlanEntry& entry);
  void deliver(LiveRequest& live, TokenEvent event);
  void end_without_token(LiveRequest& live, FinishReason reason, TimeNs now);
  void finish_times(LiveRequest& live, TimeNs now);
  void leave_queue(LiveRequest& live);
  void forget(LiveRequest& live);
  void notify_clients();
  void record(Step& step, TimeNs commit_began, TimeNs cpu_began);
  void meter(const StepRecord& record);
  void meter_prefixes(const StepPlan& plan);
  void meet_faults();
  void note_plan(const StepPlan& plan, StepRecord& record);
  void warm_up_prompt(int tokens, bool tells_time);
  void warm_up_bucket(int rows);
  void run_alone(Step* step);

  EngineDoor& door_;
  EngineMeters& meters_;
  const int vocab_;
  const KvLayout layout_;
  const size_t slot_bytes_;
  MpmcQueue<LiveRequest*> inbox_;
  MpmcQueue<Policy> policies_{4};
  std::unique_ptr<DiskThread> disk_;  // null: no files
  std::unique_ptr<HostTier> host_;    // null: blocks stay in the pool
  Scheduler scheduler_;
  BatchBuilder builder_;
  StepLedger ledger_;
  std::vector<std::shared_ptr<RequestStream>> to_notify_;
  std::vector<LiveRequest*> dropped_;
  uint64_t cancels_seen_ = 0;
  PerLane<int> gone_{};  // in this turn
  int64_t next_step_ = 1;
  bool shown_ = true;             // EngineDoor::shown, as of this turn
  const Step* behind_ = nullptr;  // launched while another step ran, which has not been committed yet
  TimeNs work_since_ = 0;  // since when there has been something to compute without a break; 0: there is not
  DeviceShare device_share_;
  OneSequenceShare one_sequence_share_;
  PrefixHitShare prefix_hit_share_;
  uint64_t evictions_noted_ = 0;  // up to the step before
  uint64_t evictions_seen_ = 0, host_evictions_seen_ = 0;
  double kv_peak_bytes_ = 0;

  // Published for status().
  std::atomic<int> running_{0}, waiting_{0}, blocks_used_{0}, blocks_cached_{0};
  std::atomic<uint64_t> steps_{0};
  std::atomic<TimeNs> last_step_{0}, turn_since_{0};  // turn: 0: it sleeps

  int masked_ = 0;                     // live requests with a constraint
  std::vector<LiveRequest*> unready_;  // of those, the ones whose first mask is being made: not scheduled yet
  const bool late_masks_;
  MaskThreads masks_;
  Executor executor_;  // last: its thread ends first
};

}  // namespace sluice
