// What the loop tells of its steps: their records, metrics, and the cache's occupancy.
#include <algorithm>

#include "base/probes.h"
#include "engine/step_loop.h"

namespace sluice {

// `cpu_began`: the thread's CPU time when it began to take the step back.
void StepLoop::record(Step& step, TimeNs commit_began, TimeNs cpu_began) {
  StepRecord& r = step.record;
  r.running = int32_t(scheduler_.running().size());
  r.waiting = int32_t(scheduler_.waiting().size());
  r.blocks_used = scheduler_.blocks().used();
  r.blocks_total = scheduler_.blocks().total();
  r.admitted = step.plan.admitted;
  r.preempted = step.plan.preempted;
  r.held_back = step.plan.held_back;
  r.stopped_by = step.plan.stopped_by;
  r.flushed_by = step.plan.flushed_by;
  r.batch = step.plan.batch;
  r.looked_up_tokens = step.plan.looked_up_tokens;
  r.cached_tokens = step.plan.cached_tokens;
  r.resumed_tokens = step.plan.resumed_tokens;
  r.host_tokens = step.plan.host_tokens;
  r.disk_tokens = step.plan.disk_tokens;
  size_t host_bytes = 0;
  for (const HostMove& move : step.plan.host_moves) {
    const size_t bytes = slot_bytes_ / kSlotUnits * size_t(kv_units(kv_tier(move.block)));
    meters_.kv_host_copied_bytes[move.to != nullptr]->add(bytes);
    host_bytes += bytes;
  }
  r.host_blocks = int32_t(step.plan.host_moves.size());
  scheduler_.transfer_rates().note_host(host_bytes, r.host_copy_ns);
  // What the device waited for lay with the host only from when there was something to compute.
  r.gap_ns = std::clamp<TimeNs>(r.execute_at - work_since_, 0, r.idle_ns);
  r.commit_ns = now_ns() - commit_began;
  r.engine_off_cpu_ns = std::max<TimeNs>(0, r.engine_off_cpu_ns + r.commit_ns - (thread_cpu_ns() - cpu_began));
  r.failed = step.failed;
  if (probe::step_end_on()) probe::fire::step_end(r.step, r.execute_ns, r.gap_ns, r.sampled);
  if (r.graph == GraphUse::miss && probe::graph_miss_on()) probe::fire::graph_miss(r.step, r.tokens);
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (const int n = step.plan.preempted_of[lane]) meters_.lane_preemptions[lane]->add(uint64_t(n));
  for (const auto& [from, to] : step.plan.moves) {
    const bool converts = kv_tier(from) != kv_tier(to);
    (converts ? *meters_.kv_conversions[size_t(kv_tier(to))] : meters_.kv_gap_moves).add();
  }
  ledger_.write(r);
  meter(r);
  steps_.fetch_add(1, std::memory_order_relaxed);
  last_step_.store(commit_began, std::memory_order_relaxed);
}

void StepLoop::meter(const StepRecord& r) {
  meters_.steps.add();
  meters_.one_sequence_steps.add(r.sequences == 1);
  show(meters_.one_sequence_share, one_sequence_share_.after(r.sequences));
  meters_.computed_tokens.add(uint64_t(r.tokens));
  meters_.discarded_tokens.add(uint64_t(r.discarded));
  meters_.preemptions.add(uint64_t(r.preempted));
  meters_.paused_steps.add(uint64_t(r.paused));
  meters_.step_seconds.observe(seconds(r.execute_ns));
  meters_.step_gap_seconds.observe(seconds(r.gap_ns));
  show(meters_.device_gap, device_share_.gap_after(r.execute_ns, r.gap_ns));
  meters_.graph_steps[size_t(r.graph)]->add();
  meters_.step_tokens.observe(r.tokens);
  meters_.step_sequences.observe(r.sequences);
  if (r.sparse_blocks > 0) {
    meters_.kv_sparse_blocks.add(uint64_t(r.sparse_blocks));
    meters_.kv_sparse_blocks_read.add(uint64_t(r.sparse_blocks_read));
    show(meters_.kv_sparse_share, double(r.sparse_blocks_read) / r.sparse_blocks);
  }
  if (r.batch) {
    meters_.batch_requests.observe(r.batch);
    meters_.batches[size_t(r.flushed_by)]->add();
  }
}

// Of the plan and not of its step: one that only admitted somebody who waits for files is never run.
void StepLoop::meter_prefixes(const StepPlan& plan) {
  meters_.prefix_looked_up_tokens.add(uint64_t(plan.looked_up_tokens));
  meters_.prefix_found_tokens.add(uint64_t(plan.cached_tokens));
  meters_.prefix_resumed_tokens.add(uint64_t(plan.resumed_tokens));
  meters_.prefix_missed_evicted_tokens.add(uint64_t(plan.missed_evicted_tokens));
  meters_.prefix_host_tokens.add(uint64_t(plan.host_tokens));
  meters_.prefix_disk_tokens.add(uint64_t(plan.disk_tokens));
  if (plan.looked_up_tokens > 0)
    show(meters_.prefix_hit_ratio, prefix_hit_share_.after(plan.looked_up_tokens, plan.cached_tokens));
}

void StepLoop::publish_status() {
  const int running = int(scheduler_.running().size());
  const int waiting = std::max(int(scheduler_.waiting().size()), door_.queued.load(std::memory_order_relaxed));
  const BlockPool& blocks = scheduler_.blocks();
  shown_ = door_.shown.load(std::memory_order_relaxed);
  running_.store(running, std::memory_order_relaxed);
  waiting_.store(waiting, std::memory_order_relaxed);
  blocks_used_.store(blocks.used(), std::memory_order_relaxed);
  blocks_cached_.store(blocks.cached(), std::memory_order_relaxed);
  for (int lane = 0; lane < kLanes; ++lane) {
    show(*meters_.lane_running[size_t(lane)], double(scheduler_.running_of(lane).size()));
    show(*meters_.lane_waiting[size_t(lane)], scheduler_.waiting().waiting(lane));
  }
  show(meters_.running, running);
  show(meters_.waiting, waiting);
  show(meters_.blocks_total, blocks.total());
  show(meters_.blocks_used, blocks.used());
  show(meters_.blocks_cached, blocks.cached());
  meters_.prefix_evictions.add(blocks.evicted() - evictions_seen_);
  evictions_seen_ = blocks.evicted();
  show(meters_.kv_usage, blocks.total() ? double(blocks.used()) / blocks.total() : 0);
  publish_kv();
  publish_outside();
}

void StepLoop::publish_outside() {
  if (!host_) return;
  show(meters_.kv_host_blocks, host_->blocks_on_host());
  show(meters_.kv_host_bytes, double(host_->host_bytes()));
  show(meters_.kv_disk_blocks, host_->blocks_on_disk());
  show(meters_.kv_disk_bytes, double(host_->disk_bytes()));
  show(meters_.kv_host_rate, scheduler_.transfer_rates().host());
  show(meters_.kv_disk_rate, scheduler_.transfer_rates().disk());
  meters_.kv_outside_evictions.add(host_->evicted() - host_evictions_seen_);
  host_evictions_seen_ = host_->evicted();
}

void StepLoop::publish_kv() {
  const PoolUse use = scheduler_.blocks().use();
  const double unit = double(slot_bytes_) / kSlotUnits;
  const HeldTokens& held = scheduler_.held_tokens();
  const int64_t tokens = held.planned;
  const int64_t places = layout_.groups() * (held.table_blocks * layout_.block_tokens - held.planned);
  // What has no token yet is in full precision, and nobody shares it.
  const double reserved = double(places) * double(slot_bytes_) / layout_.block_tokens;
  const double gaps = use.gaps * unit, kept = use.owned * unit + gaps;
  show(meters_.kv_used_bytes, use.owned * unit - reserved);
  show(meters_.kv_reserved_bytes, reserved);
  show(meters_.kv_cached_bytes, use.cached * unit);
  show(meters_.kv_wasted_bytes, gaps);
  show(meters_.kv_free_bytes, use.free * unit);
  show(meters_.kv_fragmentation, use.owned > 0 ? (reserved + gaps) / kept : 0);
  show(meters_.kv_bytes_per_token, tokens > 0 ? kept / double(tokens) : 0);
  kv_peak_bytes_ = std::max(kv_peak_bytes_, kept);
  show(meters_.kv_peak_bytes, kv_peak_bytes_);
  for (int tier = 0; tier < kKvTiers; ++tier)
    show(*meters_.kv_tier_blocks[size_t(tier)], use.blocks[size_t(tier)]);
}

}  // namespace sluice
