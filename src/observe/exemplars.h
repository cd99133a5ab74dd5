// For the buckets of latency histograms, a trace that is kept and whose request fell there lately: from a point
// of a dashboard to the request that made it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/meter.h"
#include "observe/request_log.h"

namespace sluice {

struct Exemplar {
  TraceId trace{};
  double value = 0;         // in the histogram's unit, within the bucket
  double unix_seconds = 0;  // when its request ended
};

class Exemplars {
 public:
  // Its times, for the histograms of them: first token, queue, prefill, decode, inference, the whole, and the
  // longest between two tokens. Any thread.
  void note(const RequestAccount& account);
  void note(const Histogram& histogram, double value, const TraceId& trace, double unix_seconds);
  // Of a bucket, bounds().size(): above all.
  std::optional<Exemplar> of(const Histogram& histogram, size_t bucket) const;

 private:
  const std::vector<const Histogram*>& histograms();  // empty: not all are there yet
  mutable std::mutex mutex_;
  // Guarded by mutex_. Histograms are made as the model is loaded, and live for the process.
  std::vector<const Histogram*> histograms_;  // in the order of note()
  std::unordered_map<const Histogram*, std::vector<std::optional<Exemplar>>> by_bucket_;
};

}  // namespace sluice
