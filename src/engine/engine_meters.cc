#include "engine/engine_meters.h"

#include <fmt/format.h>

namespace sluice {
// Makes the meters of one pool.
struct MeterMaker {
  const std::string pool;

  std::string with(const std::string& labels) const {
    if (pool.empty()) return labels;
    return fmt::format("{}{}pool=\"{}\"", labels, labels.empty() ? "" : ",", pool);
  }
  Counter& counter(const std::string& name, const std::string& help, const std::string& labels = "") const {
    return meter::counter(name, help, with(labels));
  }
  Gauge& gauge(const std::string& name, const std::string& help, const std::string& labels = "") const {
    return meter::gauge(name, help, with(labels));
  }
  Histogram& histogram(const std::string& name, const std::string& help, std::span<const double> bounds,
                       const std::string& labels = "") const {
    return meter::histogram(name, help, bounds, with(labels));
  }
};

namespace {

constexpr std::array<double, 13> kSizes = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
constexpr std::array<double, 12> kGaps = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5,
                                          1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1};
constexpr std::array<double, 16> kLengths = {1,   2,    5,    10,   20,    50,    100,   200,
                                             500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

Histogram& seconds(const MeterMaker& of, const char* name, const char* help) {
  return of.histogram(name, help, meter::kSeconds);
}
Gauge& kv_bytes(const MeterMaker& of, const char* state) {
  return of.gauge("sluice_kv_bytes",
                  "Bytes of the key/value pool: used: tokens of running requests; reserved: places in their "
                  "blocks without a token yet; cached: blocks that nobody uses and whose content is kept; "
                  "wasted: gaps between blocks of small tiers; free.",
                  fmt::format("state=\"{}\"", state));
}
constexpr const char* kRateHelp =
    "How fast key/value blocks come into the pool from host memory, and into host memory from files.";
Gauge& outside_gauge(const MeterMaker& of, const char* what, const char* help, const char* where) {
  return of.gauge(fmt::format("sluice_kv_outside_{}", what), help, fmt::format("where=\"{}\"", where));
}
Counter& prefix_from(const MeterMaker& of, const char* where) {
  return of.counter(
      "sluice_prefix_cache_restored_tokens_total",
      "Tokens found in the prefix cache whose blocks were not in the pool but in host memory or in "
      "files; the others found were in the pool.",
      fmt::format("from=\"{}\"", where));
}
Counter& rejected(const MeterMaker& of, const char* reason) {
  return of.counter("sluice_requests_rejected_total", "Requests refused at submission, by reason.",
                    fmt::format("reason=\"{}\"", reason));
}

}  // namespace

EngineMeters::EngineMeters(const std::string& pool) : EngineMeters(MeterMaker{pool}) {}

EngineMeters::EngineMeters(const MeterMaker& of)
    : started(of.counter("sluice_requests_started_total", "Requests submitted.")),
      rejected_invalid(rejected(of, "invalid")),
      rejected_full(rejected(of, "queue_full")),
      rejected_draining(rejected(of, "draining")),
      running(of.gauge("sluice_requests_running", "Sequences that hold a slot.")),
      waiting(of.gauge("sluice_requests_waiting", "Requests in the queue, preempted ones included.")),
      kv_usage(of.gauge("sluice_kv_usage_ratio", "Share of the key/value blocks in use.")),
      blocks_used(of.gauge("sluice_kv_blocks_used", "Key/value blocks in use.")),
      blocks_total(of.gauge("sluice_kv_blocks", "Key/value blocks in the pool.")),
      blocks_cached(
          of.gauge("sluice_kv_blocks_cached", "Key/value blocks that nobody uses and whose content is kept.")),
      kv_used_bytes(kv_bytes(of, "used")),
      kv_reserved_bytes(kv_bytes(of, "reserved")),
      kv_cached_bytes(kv_bytes(of, "cached")),
      kv_wasted_bytes(kv_bytes(of, "wasted")),
      kv_free_bytes(kv_bytes(of, "free")),
      kv_fragmentation(of.gauge("sluice_kv_fragmentation_ratio",
                                "Of the pool's bytes that running requests keep from others, the share that "
                                "holds no token.")),
      kv_bytes_per_token(of.gauge("sluice_kv_bytes_per_token",
                                  "Pool bytes that running requests keep from others, by their tokens.")),
      kv_peak_bytes(of.gauge("sluice_kv_peak_bytes",
                             "Pool bytes that running requests kept from others at most so far.")),
      kv_gap_moves(of.counter("sluice_kv_gap_moves_total",
                              "Blocks of small tiers moved together so that a slot became free.")),
      kv_host_blocks(outside_gauge(of, "blocks", "Key/value blocks kept outside the pool.", "host")),
      kv_host_bytes(outside_gauge(of, "bytes", "Bytes of key/value blocks kept outside the pool.", "host")),
      kv_disk_blocks(outside_gauge(of, "blocks", "Key/value blocks kept outside the pool.", "disk")),
      kv_disk_bytes(outside_gauge(of, "bytes", "Bytes of key/value blocks kept outside the pool.", "disk")),
      kv_host_rate(outside_gauge(of, "read_bytes_per_second", kRateHelp, "host")),
      kv_disk_rate(outside_gauge(of, "read_bytes_per_second", kRateHelp, "disk")),
      kv_sparse_blocks(of.counter("sluice_kv_sparse_blocks_total",
                                  "Key/value blocks of contexts longer than kv.sparse_above, once for each "
                                  "step that decoded one.")),
      kv_sparse_blocks_read(
          of.counter("sluice_kv_sparse_blocks_read_total", "Of these, the blocks that a head read.")),
      kv_sparse_share(of.gauge("sluice_kv_sparse_read_ratio",
                               "Share of blocks read, of the last step that decoded such a context.")),
      kv_outside_evictions(of.counter("sluice_kv_outside_evictions_total",
                                      "Key/value blocks outside the pool that gave way to others.")),
      prefix_looked_up_tokens(of.counter("sluice_prefix_cache_queries_total",
                                         "Prompt tokens looked up in the prefix cache, at admission.")),
      prefix_found_tokens(of.counter("sluice_prefix_cache_hits_total",
                                     "Prompt tokens found in the prefix cache, so not computed.")),
      prefix_resumed_tokens(of.counter("sluice_prefix_cache_resumed_tokens_total",
                                       "Tokens of preempted requests found there when they resumed.")),
      prefix_missed_evicted_tokens(
          of.counter("sluice_prefix_cache_missed_evicted_tokens_total",
                     "Prompt tokens looked up and not found that had been there and gave way not long ago.")),
      prefix_host_tokens(prefix_from(of, "host")),
      prefix_disk_tokens(prefix_from(of, "disk")),
      prefix_hit_ratio(of.gauge("sluice_prefix_cache_hit_ratio",
                                "Share found of about the last hundred thousand tokens looked up.")),
      prefix_evictions(of.counter("sluice_prefix_cache_evictions_total",
                                  "Blocks whose kept content gave way to something else.")),
      prompt_tokens(of.counter("sluice_prompt_tokens_total", "Prompt tokens of requests past their prompt.")),
      generated_tokens(of.counter("sluice_generated_tokens_total", "Tokens generated and handed to clients.")),
      computed_tokens(
          of.counter("sluice_computed_tokens_total", "Rows of all steps, recomputed ones included.")),
      recomputed_tokens(of.counter("sluice_recomputed_tokens_total",
                                   "Rows of steps that had been computed before a preemption.")),
      discarded_tokens(of.counter("sluice_discarded_tokens_total",
                                  "Tokens sampled for a sequence that had ended while they were in flight.")),
      preemptions(of.counter("sluice_preemptions_total", "Sequences that gave up their blocks to older ones.")),
      steps(of.counter("sluice_steps_total", "Steps executed.")),
      one_sequence_steps(of.counter("sluice_steps_of_one_sequence_total", "Steps with a single sequence.")),
      one_sequence_share(of.gauge("sluice_steps_of_one_sequence_ratio",
                                  "Share of about the last thousand steps with a single sequence.")),
      paused_steps(of.counter("sluice_paused_sequence_steps_total",
                              "Sequences left out of a step because their client does not read.")),
      first_token_seconds(seconds(of, "sluice_time_to_first_token_seconds", "Submission to first token.")),
      inter_token_seconds(seconds(of, "sluice_inter_token_seconds", "Between two tokens of a request.")),
      request_seconds(seconds(of, "sluice_request_seconds", "Submission to last token.")),
      queue_seconds(seconds(of, "sluice_request_queue_seconds", "Submission to first admission.")),
      prefill_seconds(seconds(of, "sluice_request_prefill_seconds", "First admission to first token.")),
      decode_seconds(seconds(of, "sluice_request_decode_seconds", "First token to last.")),
      inference_seconds(seconds(of, "sluice_request_inference_seconds", "First admission to last token.")),
      step_seconds(seconds(of, "sluice_step_seconds", "Execution of a step on the device.")),
      step_gap_seconds(of.histogram("sluice_step_gap_seconds",
                                    "Before a step, how long the device stood still though there was work.",
                                    kGaps)),
      device_gap(of.gauge("sluice_device_gap_ratio",
                          "Share of recent time with work in which the device stood still.")),
      step_tokens(of.histogram("sluice_step_tokens", "Tokens of a step.", kSizes)),
      step_sequences(of.histogram("sluice_step_sequences", "Sequences of a step.", kSizes)),
      batch_requests(of.histogram("sluice_batch_requests",
                                  "Requests of a batch, when it was flushed; no batches are made under "
                                  "scheduler.policy continuous.",
                                  kSizes)),
      request_prompt_tokens(of.histogram("sluice_request_prompt_tokens", "Prompt length.", kLengths)),
      request_generated_tokens(of.histogram("sluice_request_generated_tokens", "Generated length.", kLengths)) {
  for (FinishReason r : {FinishReason::stop, FinishReason::length, FinishReason::cancelled,
                         FinishReason::deadline, FinishReason::failed}) {
    finished[size_t(r)] = &of.counter("sluice_requests_finished_total", "Requests ended, by reason.",
                                      fmt::format("reason=\"{}\"", finish_reason_name(r)));
  }
  for (const KvTier tier : {KvTier::full, KvTier::int8, KvTier::fp8, KvTier::int4}) {
    const std::string label = fmt::format("tier=\"{}\"", kv_tier_name(tier));
    kv_tier_blocks[size_t(tier)] =
        &of.gauge("sluice_kv_tier_blocks", "Key/value blocks that hold something, by precision.", label);
    if (tier != KvTier::full)
      kv_conversions[size_t(tier)] = &of.counter(
          "sluice_kv_conversions_total", "Key/value blocks converted, by the precision they got.", label);
  }
  for (const bool from : {false, true})
    kv_host_copied_bytes[size_t(from)] =
        &of.counter("sluice_kv_host_copied_bytes_total",
                    "Bytes of key/value blocks copied between the pool and host memory.",
                    fmt::format("to=\"{}\"", from ? "pool" : "host"));
  for (int i = 0; i < kLanes; ++i) {
    const auto lane = size_t(i);
    const std::string label = fmt::format("lane=\"{}\"", lane_name(Lane(i)));
    lane_queue_seconds[lane] = &of.histogram("sluice_lane_queue_seconds",
                                             "Submission to first admission, by lane.", meter::kSeconds, label);
    lane_running[lane] =
        &of.gauge("sluice_lane_requests_running", "Sequences that hold a slot, by lane.", label);
    lane_waiting[lane] = &of.gauge("sluice_lane_requests_waiting", "Requests in the queue, by lane.", label);
    lane_preemptions[lane] =
        &of.counter("sluice_lane_preemptions_total",
                    "Sequences that gave up slot and blocks to others, by their lane.", label);
  }
  for (FlushReason r : {FlushReason::size, FlushReason::age, FlushReason::idle, FlushReason::serial}) {
    batches[size_t(r)] = &of.counter("sluice_batches_total",
                                     "Batches flushed: size: full; age: its first request had waited long "
                                     "enough; idle: nothing more arrived; serial: its turn.",
                                     fmt::format("flush=\"{}\"", flush_reason_name(r)));
  }
  for (GraphUse use : {GraphUse::none, GraphUse::miss, GraphUse::hit}) {
    graph_steps[size_t(use)] = &of.counter("sluice_graph_steps_total",
                                           "Steps by how they were launched: hit: a recorded step was "
                                           "replayed; miss: it had to be recorded first; "
                                           "none: op by op.",
                                           fmt::format("graph=\"{}\"", graph_use_name(use)));
  }
}

}  // namespace sluice
