#include "observe/live.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace sluice {

namespace {

const Meter* find_histogram(const std::vector<Meter>& meters, std::string_view name) {
  for (const Meter& m : meters) {
    if (m.histogram != nullptr && m.name == name) return &m;
  }
  return nullptr;
}

// The value of label `label` in `labels`, which are as meters have them: a="x",b="y".
std::string_view label_value(std::string_view labels, std::string_view label) {
  const std::string key = std::string(label) + "=\"";
  const size_t at = labels.find(key);
  if (at == std::string_view::npos) return {};
  labels.remove_prefix(at + key.size());
  return labels.substr(0, std::min(labels.find('"'), labels.size()));
}

// One gauge per value of a label, in order of registration; `other` from a second family.
std::vector<LiveShare> shares_by(const std::vector<Meter>& meters, std::string_view label,
                                 std::string_view used, std::string_view other) {
  std::vector<LiveShare> out;
  for (const Meter& m : meters) {
    const std::string_view name = label_value(m.labels, label);
    if (m.gauge == nullptr || name.empty() || (m.name != used && m.name != other)) continue;
    auto share = std::find_if(out.begin(), out.end(), [&](const LiveShare& s) { return s.name == name; });
    if (share == out.end()) share = out.insert(out.end(), LiveShare{std::string(name)});
    (m.name == used ? share->used : share->other) = m.gauge->value();
  }
  return out;
}

// Of the blocks that hold something, those of each precision; nothing where all are in one.
std::vector<LiveShare> tiers_of(const std::vector<Meter>& meters) {
  std::vector<LiveShare> tiers = shares_by(meters, "tier", "sluice_kv_tier_blocks", "");
  std::erase_if(tiers, [](const LiveShare& tier) { return tier.used == 0; });
  if (tiers.size() == 1 && tiers[0].name == "full") tiers.clear();
  double all = 0;
  for (const LiveShare& tier : tiers) all += tier.used;
  for (LiveShare& tier : tiers) tier.other = all;
  return tiers;
}

}  // namespace

double value_of(const MeterValues& sums, std::string_view name) {
  const auto found = sums.find(name);
  return found == sums.end() ? 0 : found->second;
}

double bucket_quantile(std::span<const double> bounds, std::span<const uint64_t> counts, double q) {
  const double total = double(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
  double below = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const double here = double(counts[i]);
    if (here > 0 && below + here >= q * total) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      return low + (bounds[i] - low) * std::max(0.0, q * total - below) / here;
    }
    below += here;
  }
  return bounds.empty() || total == 0 ? 0 : bounds.back();
}

LiveSampler::Seen LiveSampler::read(const std::vector<Meter>& meters, const StepLedger* ledger, TimeNs now) {
  Seen seen;
  seen.at = now;
  seen.steps = ledger != nullptr ? ledger->written() : 0;
  for (const Meter& m : meters) {
    if (m.counter != nullptr) seen.sums[m.name] += double(m.counter->value()) * m.unit;
    if (m.gauge != nullptr) seen.sums[m.name] += m.gauge->value();
    if (m.histogram == nullptr) continue;
    Buckets& buckets = seen.buckets[m.name];
    buckets.resize(m.histogram->bounds().size() + 1);
    for (size_t i = 0; i < buckets.size(); ++i) buckets[i] += m.histogram->bucket(int(i));
  }
  return seen;
}

void LiveSampler::add_steps(LiveSample& out, const StepLedger& ledger, const Seen& now,
                            const Seen& before) const {
  StepSplit& split = out.split;
  TimeNs executed = 0;
  double bytes = 0, flops = 0;
  for (const StepRecord& r : ledger.last(size_t(now.steps - before.steps))) {
    ++split.steps;
    split.plan_ms += ms(r.plan_ns);
    split.build_ms += ms(r.build_ns);
    split.launch_ms += ms(r.launch_ns);
    split.execute_ms += ms(r.execute_ns);
    split.gap_ms += ms(r.gap_ns);
    split.commit_ms += ms(r.commit_ns);
    split.to_device_us += 1e3 * ms(r.to_device_ns);
    split.kernels_us += 1e3 * ms(r.kernels_ns);
    split.to_host_us += 1e3 * ms(r.to_host_ns);
    split.tokens += r.tokens;
    split.sequences += r.sequences;
    executed += r.execute_ns;
    bytes += double(r.weight_bytes + r.kv_read_bytes + r.kv_write_bytes);
    flops += r.flops;
    out.stopped_by = r.stopped_by;
  }
  if (split.steps == 0) return;
  for (double* mean :
       {&split.plan_ms, &split.build_ms, &split.launch_ms, &split.execute_ms, &split.gap_ms, &split.commit_ms,
        &split.to_device_us, &split.kernels_us, &split.to_host_us, &split.tokens, &split.sequences})
    *mean /= split.steps;
  // Where records were overwritten before they were read, those that are left stand for all.
  const double share = double(now.steps - before.steps) / split.steps;
  out.busy_ratio = std::clamp(share * seconds(executed) / out.interval_s, 0.0, 1.0);
  if (executed > 0) {
    out.bytes_s = bytes / seconds(executed);
    out.flops_s = flops / seconds(executed);
  }
}

LiveSample LiveSampler::sample(const std::vector<Meter>& meters, const StepLedger* ledger, TimeNs now) {
  const Seen current = read(meters, ledger, now);
  const bool first = seen_.empty();
  if (first) seen_.push_back(current);
  const Seen& before = seen_.back();
  const Seen& oldest = seen_.front();
  LiveSample out;
  out.interval_s = std::max(1e-3, seconds(now - before.at));
  const auto gauge = [&](std::string_view name) { return value_of(current.sums, name); };
  const auto grown = [&](std::string_view name, const Seen& since) {
    return std::max(0.0, gauge(name) - value_of(since.sums, name));
  };
  const auto rate = [&](std::string_view name) { return grown(name, before) / out.interval_s; };
  const auto window = [&](std::string_view name) {
    const auto found = current.buckets.find(name);
    Buckets buckets = found == current.buckets.end() ? Buckets() : found->second;
    if (const auto old = oldest.buckets.find(name); old != oldest.buckets.end()) {
      for (size_t i = 0; i < std::min(buckets.size(), old->second.size()); ++i) buckets[i] -= old->second[i];
    }
    return buckets;
  };
  const auto quantiles = [&](std::string_view name) {
    Quantiles q;
    const Meter* meter = find_histogram(meters, name);
    if (meter == nullptr) return q;
    const Buckets buckets = window(name);
    const auto bounds = meter->histogram->bounds();
    q.count = std::accumulate(buckets.begin(), buckets.end(), uint64_t{0});
    q.p50 = bucket_quantile(bounds, buckets, 0.50);
    q.p95 = bucket_quantile(bounds, buckets, 0.95);
    q.p99 = bucket_quantile(bounds, buckets, 0.99);
    return q;
  };

  out.running = int(gauge("sluice_requests_running"));
  out.waiting = int(gauge("sluice_requests_waiting"));
  out.lanes = shares_by(meters, "lane", "sluice_lane_requests_running", "sluice_lane_requests_waiting");
  out.prompt_tokens_s = rate("sluice_prompt_tokens_total");
  out.generated_tokens_s = rate("sluice_generated_tokens_total");
  out.computed_tokens_s = rate("sluice_computed_tokens_total");
  out.steps_s = rate("sluice_steps_total");
  out.finished_s = rate("sluice_requests_finished_total");
  out.rejected_s = rate("sluice_requests_rejected_total");
  out.preemptions = uint64_t(grown("sluice_preemptions_total", before));
  out.paused = uint64_t(grown("sluice_paused_sequence_steps_total", before));
  out.first_token = quantiles("sluice_time_to_first_token_seconds");
  out.inter_token = quantiles("sluice_inter_token_seconds");
  out.queue = quantiles("sluice_request_queue_seconds");
  if (const Meter* meter = find_histogram(meters, "sluice_step_sequences")) {
    const Buckets buckets = window("sluice_step_sequences");
    const auto bounds = meter->histogram->bounds();
    for (size_t i = 0; i < buckets.size(); ++i)
      out.batch.push_back(
          {i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity(), buckets[i]});
  }
  out.kv_used = gauge("sluice_kv_blocks_used");
  out.kv_total = gauge("sluice_kv_blocks");
  out.kv_bytes = shares_by(meters, "state", "sluice_kv_bytes", "");
  out.kv_fragmentation = gauge("sluice_kv_fragmentation_ratio");
  out.tiers = tiers_of(meters);
  const double looked_up = grown("sluice_prefix_cache_queries_total", oldest);
  if (looked_up > 0) out.prefix_hit_ratio = grown("sluice_prefix_cache_hits_total", oldest) / looked_up;
  if (ledger != nullptr && !first) add_steps(out, *ledger, current, before);
  if (!first) seen_.push_back(current);
  if (seen_.size() > kWindowSamples) seen_.pop_front();
  return out;
}

}  // namespace sluice
