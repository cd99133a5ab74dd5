#include "observe/exemplars.h"

#include <algorithm>
#include <array>

namespace sluice {
namespace {

constexpr std::array<const char*, 7> kNames = {
    "sluice_time_to_first_token_seconds", "sluice_request_queue_seconds",     "sluice_request_prefill_seconds",
    "sluice_request_decode_seconds",      "sluice_request_inference_seconds", "sluice_request_seconds",
    "sluice_inter_token_seconds"};

}  // namespace

// What it returns never changes once it is not empty.
const std::vector<const Histogram*>& Exemplars::histograms() {
  static const std::vector<const Histogram*> kNone;
  std::lock_guard lock(mutex_);
  if (!histograms_.empty()) return histograms_;
  std::vector<const Histogram*> found(kNames.size());
  for (const Meter& m : meter::all()) {
    const auto name = std::find(kNames.begin(), kNames.end(), m.name);
    if (m.histogram != nullptr && name != kNames.end()) found[size_t(name - kNames.begin())] = m.histogram;
  }
  if (std::find(found.begin(), found.end(), nullptr) != found.end()) return kNone;
  return histograms_ = std::move(found);
}

void Exemplars::note(const RequestAccount& account) {
  if (account.choices.empty()) return;
  const auto& of = histograms();
  if (of.empty()) return;
  const ChoiceAccount& c = account.choices[account.last];
  if (c.first_token == 0) return;
  const TimeNs admitted = c.submitted + c.spans[Span::queue];
  const std::array<TimeNs, kNames.size()> times = {c.first_token - c.submitted,
                                                   admitted - c.submitted,
                                                   c.first_token - admitted,
                                                   c.engine_end - c.first_token,
                                                   c.engine_end - admitted,
                                                   c.engine_end - c.submitted,
                                                   c.longest_gap};
  const double at = account.started_at + seconds(account.total());
  for (size_t i = 0; i < times.size(); ++i) {
    if (i + 1 == times.size() && c.longest_gap == 0) continue;  // it has a single token
    note(*of[i], seconds(times[i]), account.trace.trace_id, at);
  }
}

void Exemplars::note(const Histogram& histogram, double value, const TraceId& trace, double unix_seconds) {
  const auto bounds = histogram.bounds();
  const size_t bucket = size_t(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
  std::lock_guard lock(mutex_);
  auto& buckets = by_bucket_[&histogram];
  buckets.resize(bounds.size() + 1);
  buckets[bucket] = {trace, value, unix_seconds};
}

std::optional<Exemplar> Exemplars::of(const Histogram& histogram, size_t bucket) const {
  std::lock_guard lock(mutex_);
  const auto it = by_bucket_.find(&histogram);
  return it == by_bucket_.end() ? std::nullopt : it->second[bucket];
}

}  // namespace sluice
