// What the engine counts about itself, named in one place. Conservation, checked by tests: once idle,
// started == finished (all reasons) + rejected.
#pragma once

#include <array>

#include "base/meter.h"
#include "engine/step_record.h"
#include "sched/lanes.h"
#include "sched/request.h"
#include "tensor/kv_tier.h"

namespace sluice {

constexpr const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::deadline:
      return "deadline";
    case FinishReason::failed:
      return "failed";
  }
  return "?";
}

// The share of the last ten to twenty seconds of steps that the device stood still though there was work.
class DeviceShare {
 public:
  double gap_after(TimeNs execute_ns, TimeNs gap_ns) {
    busy_ += seconds(execute_ns);
    gap_ += seconds(gap_ns);
    if (busy_ + gap_ > 20) busy_ /= 2, gap_ /= 2;
    return busy_ + gap_ > 0 ? gap_ / (busy_ + gap_) : 0;
  }

 private:
  double busy_ = 0, gap_ = 0;
};

// The share of about the last thousand steps that computed a single sequence: batching that has collapsed shows
// here at once.
class OneSequenceShare {
 public:
  double after(int sequences) {
    constexpr int kForget = 1024;
    ++steps_;
    alone_ += sequences == 1;
    if (steps_ > kForget) steps_ /= 2, alone_ /= 2;
    return alone_ / steps_;
  }

 private:
  double steps_ = 0, alone_ = 0;
};

// Of about the last hundred thousand prompt tokens that were looked up in the prefix cache, the share that was
// found.
class PrefixHitShare {
 public:
  double after(int looked_up, int found) {
    constexpr double kForget = 1 << 17;
    looked_up_ += looked_up;
    found_ += found;
    if (looked_up_ > kForget) looked_up_ /= 2, found_ /= 2;
    return looked_up_ > 0 ? found_ / looked_up_ : 0;
  }

 private:
  double looked_up_ = 0, found_ = 0;
};

struct MeterMaker;

struct EngineMeters {
  // `pool`: a label of all of them; empty: they have none.
  explicit EngineMeters(const std::string& pool = {});
  explicit EngineMeters(const MeterMaker& of);

  Counter& started;
  std::array<Counter*, 6> finished{};  // by FinishReason; `none` stays null
  Counter& rejected_invalid;
  Counter& rejected_full;
  Counter& rejected_draining;

  Gauge& running;
  Gauge& waiting;
  Gauge& kv_usage;  // 0..1
  Gauge& blocks_used;
  Gauge& blocks_total;
  Gauge& blocks_cached;
  // Together the pool. Used: by tokens of requests that run; reserved: their blocks' places without a token
  // yet; wasted: what blocks of small tiers leave between them.
  Gauge &kv_used_bytes, &kv_reserved_bytes, &kv_cached_bytes, &kv_wasted_bytes, &kv_free_bytes;
  Gauge& kv_fragmentation;    // 0..1 reserved and wasted, of all but cached and free
  Gauge& kv_bytes_per_token;  // all but cached and free, by the tokens of requests that run
  Gauge& kv_peak_bytes;       // the same in bytes, at most so far
  std::array<Gauge*, kKvTiers> kv_tier_blocks{};
  std::array<Counter*, kKvTiers> kv_conversions{};  // by the tier they go to
  Counter& kv_gap_moves;
  // Outside the pool: in host memory, in files.
  Gauge &kv_host_blocks, &kv_host_bytes, &kv_disk_blocks, &kv_disk_bytes;
  Gauge &kv_host_rate, &kv_disk_rate;                 // bytes a second
  std::array<Counter*, 2> kv_host_copied_bytes{};     // to the host, from it
  Counter &kv_sparse_blocks, &kv_sparse_blocks_read;  // of sequences that are decoded over a part
  Gauge& kv_sparse_share;                             // 0..1, of the last such step
  Counter& kv_outside_evictions;                      // blocks

  Counter& prefix_looked_up_tokens;
  Counter& prefix_found_tokens;
  Counter& prefix_resumed_tokens;
  Counter& prefix_missed_evicted_tokens;
  Counter &prefix_host_tokens, &prefix_disk_tokens;  // of those found or resumed, not in the pool
  Gauge& prefix_hit_ratio;                           // 0..1, PrefixHitShare
  Counter& prefix_evictions;                         // blocks

  Counter& prompt_tokens;      // of requests whose prompt has been computed
  Counter& generated_tokens;   // sent to clients
  Counter& computed_tokens;    // all rows of all steps
  Counter& recomputed_tokens;  // of these, what had been computed before a preemption
  Counter& discarded_tokens;   // sampled for sequences that had ended meanwhile
  Counter& preemptions;
  Counter& steps;
  Counter& one_sequence_steps;
  Gauge& one_sequence_share;  // 0..1, OneSequenceShare
  Counter& paused_steps;      // sequences left out of a step because their client does not read, summed

  Histogram& first_token_seconds;
  Histogram& inter_token_seconds;
  Histogram& request_seconds;
  Histogram& queue_seconds;
  Histogram& prefill_seconds;
  Histogram& decode_seconds;
  Histogram& inference_seconds;
  Histogram& step_seconds;
  Histogram& step_gap_seconds;
  Gauge& device_gap;                    // 0..1, DeviceShare
  std::array<Counter*, 3> graph_steps;  // by GraphUse
  Histogram& step_tokens;
  Histogram& step_sequences;
  Histogram& batch_requests;          // of policies that make batches
  std::array<Counter*, 5> batches{};  // by FlushReason; `none` stays null
  PerLane<Histogram*> lane_queue_seconds{};
  PerLane<Gauge*> lane_running{}, lane_waiting{};
  PerLane<Counter*> lane_preemptions{};
  Histogram& request_prompt_tokens;
  Histogram& request_generated_tokens;
};

}  // namespace sluice
