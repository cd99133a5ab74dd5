#include "observe/vitals.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sluice {
namespace {

const ThreadTimes* find_thread(const HostState& state, const ThreadTimes& like, size_t nth) {
  for (const ThreadTimes& t : state.threads)
    if (t.name == like.name && nth-- == 0) return &t;
  return nullptr;
}

bool steps_wait_for(std::string_view thread) {
  return thread == "sluice-engine" || thread == "sluice-executor" || thread.starts_with("sluice-cpu-");
}

}  // namespace

StepVitals step_vitals(const std::vector<StepRecord>& records) {
  StepVitals v;
  v.steps = int(records.size());
  if (records.empty()) return v;
  double decode_s = 0, mixed_s = 0;
  int queued = 0;
  for (const StepRecord& r : records) {
    const double s = seconds(r.execute_ns);
    v.execute_s += s, v.gap_s += seconds(r.gap_ns), v.launch_s += seconds(r.launch_ns);
    v.sequences += r.sequences, v.tokens += r.tokens, v.running += r.running, v.waiting += r.waiting;
    v.weight_bytes += double(r.weight_bytes), v.kv_bytes += double(r.kv_read_bytes + r.kv_write_bytes),
        v.flops += r.flops;
    v.longest_context = std::max(v.longest_context, r.longest_context);
    v.alone_share += r.sequences == 1;
    v.alone_waiting_share += r.sequences == 1 && r.waiting > 0;
    if (r.waiting > 0) {
      ++queued;
      v.stopped_share[size_t(r.stopped_by)] += 1;
    }
    if (r.sequences > 0 && r.one_token_sequences == r.sequences) {
      decode_s += s, ++v.pure_decodes;
      (r.graph == GraphUse::hit    ? v.graph_hits
       : r.graph == GraphUse::miss ? v.graph_misses
                                   : v.graph_none) += 1;
    } else if (r.one_token_sequences > 0) {
      mixed_s += s, ++v.mixed;
    }
  }
  const double n = v.steps;
  for (double* mean : {&v.sequences, &v.tokens, &v.running, &v.waiting, &v.alone_share, &v.alone_waiting_share})
    *mean /= n;
  v.waiting_share = queued / n;
  if (queued > 0)
    for (double& share : v.stopped_share) share /= queued;
  if (v.pure_decodes > 0) v.decode_ms = 1e3 * decode_s / v.pure_decodes;
  if (v.mixed > 0) v.mixed_ms = 1e3 * mixed_s / v.mixed;
  if (decode_s + mixed_s > 0) v.mixed_share = mixed_s / (decode_s + mixed_s);
  return v;
}

HostVitals host_vitals(const HostState& before, const HostState& now, double window_s) {
  HostVitals v;
  v.usable_cpus = now.usable_cpus, v.compute_cores = now.compute_cores, v.load = now.load, v.nodes = now.nodes,
  v.remote_share = now.remote_share;
  if (now.usable_cpus > 0) v.cpu_share = (now.cpu_s - before.cpu_s) / (window_s * now.usable_cpus);
  v.throttled_share = (now.throttled_s - before.throttled_s) / window_s;
  v.major_faults_s = double(now.major_faults - before.major_faults) / window_s;
  std::map<std::string, size_t> seen;
  for (const ThreadTimes& t : now.threads) {
    const ThreadTimes* was = find_thread(before, t, seen[t.name]++);
    if (!steps_wait_for(t.name)) continue;
    v.compute_threads += t.name != "sluice-engine";
    if (was == nullptr || t.waited_s < was->waited_s) continue;
    const double waited = t.waited_s - was->waited_s;
    if (waited / window_s <= v.delay_share) continue;
    v.delayed_thread = t.name, v.delay_share = waited / window_s;
    v.delay_ms_turn = 1e3 * waited / double(std::max<uint64_t>(1, t.turns - was->turns));
  }
  return v;
}

void VitalsHistory::note(const std::vector<Meter>& meters, const StepLedger* ledger,
                         std::optional<HostState> host, TimeNs now) {
  Reading reading;
  reading.at = now;
  reading.steps = ledger != nullptr ? ledger->written() : 0;
  std::vector<double> bounds;
  for (const Meter& m : meters) {
    if (m.histogram != nullptr && m.name == "sluice_request_queue_seconds") {
      bounds.assign(m.histogram->bounds().begin(), m.histogram->bounds().end());
      for (size_t i = 0; i <= bounds.size(); ++i) reading.queue.push_back(m.histogram->bucket(int(i)));
    }
    if (m.counter == nullptr && m.gauge == nullptr) continue;
    const double value = m.counter != nullptr ? double(m.counter->value()) * m.unit : m.gauge->value();
    reading.values[m.name] += value;
    if (!m.labels.empty()) reading.values[m.name + "{" + m.labels + "}"] = value;
  }
  std::lock_guard lock(mutex_);
  queue_bounds_ = std::move(bounds);
  readings_.push_back(std::move(reading));
  while (readings_.back().at - readings_.front().at > TimeNs(kLongestWindow_s) * 1'000'000'000)
    readings_.pop_front();
  if (host) hosts_.push_back({now, std::move(*host)});
  while (hosts_.size() > 1 && now - hosts_[1].at > TimeNs(kLongestWindow_s) * 1'000'000'000) hosts_.pop_front();
}

void VitalsHistory::clear() {
  std::lock_guard lock(mutex_);
  readings_.clear();
}

HostVitals VitalsHistory::host_window(TimeNs from, std::optional<HostReading> host_now) const {
  if (!host_now && !hosts_.empty()) host_now = hosts_.back();
  if (!host_now || hosts_.empty()) return {};
  auto first = hosts_.begin();
  while (std::next(first) != hosts_.end() && std::next(first)->at <= from) ++first;
  return host_vitals(first->state, host_now->state, std::max(1e-3, seconds(host_now->at - first->at)));
}

Vitals VitalsHistory::window(double window_s, const StepLedger* ledger,
                             std::optional<HostReading> host_now) const {
  std::lock_guard lock(mutex_);
  Vitals v;
  if (readings_.size() < 2) {
    v.complete = false;
    return v;
  }
  const Reading& last = readings_.back();
  auto from = std::prev(readings_.end(), 2);
  while (from != readings_.begin() && seconds(last.at - from->at) + 0.5 < window_s) --from;
  const Reading& first = *from;
  v.window_s = std::max(1e-3, seconds(last.at - first.at));
  v.complete = v.window_s + 1.5 >= window_s;
  const auto grown = [&](std::string_view name) {
    return std::max(0.0, value_of(last.values, name) - value_of(first.values, name));
  };
  // Of a gauge that nobody sums up.
  const auto mean = [&](std::string_view name) {
    double sum = 0;
    for (auto at = from; at != readings_.end(); ++at) sum += value_of(at->values, name);
    return sum / double(readings_.end() - from);
  };
  v.generated_s = grown("sluice_generated_tokens_total") / v.window_s;
  v.prompt_s = grown("sluice_prompt_tokens_total") / v.window_s;
  v.finished_s = grown("sluice_requests_finished_total") / v.window_s;
  v.rejected_s = grown("sluice_requests_rejected_total") / v.window_s;
  if (ledger != nullptr) v.steps = step_vitals(ledger->last(size_t(last.steps - first.steps)));
  const double in_steps = v.steps.sequences * double(last.steps - first.steps),
               paused = grown("sluice_paused_sequence_steps_total");
  if (paused > 0) v.paused_share = paused / (paused + in_steps);

  std::vector<uint64_t> queue = last.queue;
  for (size_t i = 0; i < std::min(queue.size(), first.queue.size()); ++i) queue[i] -= first.queue[i];
  v.queued = int(std::accumulate(queue.begin(), queue.end(), uint64_t{0}));
  v.queue_p50_ms = 1e3 * bucket_quantile(queue_bounds_, queue, 0.50);
  v.queue_p95_ms = 1e3 * bucket_quantile(queue_bounds_, queue, 0.95);

  KvVitals& kv = v.kv;
  kv.used = mean(R"(sluice_kv_bytes{state="used"})"),
  kv.reserved = mean(R"(sluice_kv_bytes{state="reserved"})");
  kv.cached = mean(R"(sluice_kv_bytes{state="cached"})"),
  kv.wasted = mean(R"(sluice_kv_bytes{state="wasted"})");
  kv.free = mean(R"(sluice_kv_bytes{state="free"})");
  kv.preemptions = grown("sluice_preemptions_total");
  kv.computed_tokens = grown("sluice_computed_tokens_total");
  kv.recomputed_tokens = grown("sluice_recomputed_tokens_total");
  kv.looked_up_tokens = grown("sluice_prefix_cache_queries_total");
  kv.found_tokens = grown("sluice_prefix_cache_hits_total");
  kv.evicted_blocks = grown("sluice_prefix_cache_evictions_total");
  kv.missed_evicted_tokens = grown("sluice_prefix_cache_missed_evicted_tokens_total");
  kv.restored_bytes = grown(R"(sluice_kv_host_copied_bytes_total{to="pool"})");
  for (int k = 0; k < kAnomalyKinds; ++k) {
    for (int c = 0; c < kAnomalyCauses; ++c) {
      const AnomalyKind kind = AnomalyKind(k);
      const AnomalyCause cause = AnomalyCause(c);
      if (!is_cause_of(cause, kind)) continue;
      SeenAnomaly seen{kind, cause};
      seen.count = grown(fmt::format("sluice_token_anomalies_total{{kind=\"{}\",cause=\"{}\"}}",
                                     anomaly_name(kind), cause_name(cause)));
      if (seen.count <= 0) continue;
      if (kind == AnomalyKind::slow_token)
        seen.excess_s =
            grown(fmt::format("sluice_slow_token_seconds_total{{cause=\"{}\"}}", cause_name(cause)));
      v.anomalies.push_back(seen);
    }
  }
  v.host = host_window(first.at, std::move(host_now));
  return v;
}

}  // namespace sluice
