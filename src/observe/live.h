// The server's last second in numbers for people: rates from counters, percentiles from histograms, where a
// step's time goes from step records, and in words what holds the server back. Reads meters and records,
// changes nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/card_reading.h"
#include "base/clock.h"
#include "base/meter.h"
#include "engine/step_record.h"
#include "observe/machine_report.h"

namespace sluice {

using MeterValues = std::map<std::string, double, std::less<>>;  // by name

// Of one lane or one tier, by the label's value: what is used, what waits or how much there is.
struct LiveShare {
  std::string name;
  double used = 0, other = 0;
};

struct Quantiles {
  double p50 = 0, p95 = 0, p99 = 0;  // seconds, interpolated in a histogram's buckets
  uint64_t count = 0;                // observations in the window; 0: none, and the others mean nothing
};

// Means per step, milliseconds, over the steps that ended in the interval (of a fast engine: the last
// StepLedger::kCapacity of them).
struct StepSplit {
  int steps = 0;  // that the means are of
  double plan_ms = 0, build_ms = 0, launch_ms = 0, execute_ms = 0, gap_ms = 0, commit_ms = 0;
  double to_device_us = 0, kernels_us = 0, to_host_us = 0;  // microseconds, on a card
  double tokens = 0, sequences = 0;
};

struct BatchBucket {
  double upto = 0;  // sequences; infinite in the last
  uint64_t steps = 0;
};

struct LiveSample {
  double interval_s = 0;  // since the sample before
  int running = 0, waiting = 0;
  std::vector<LiveShare> lanes;  // used: running, other: waiting; empty: the engine has no lanes
  double prompt_tokens_s = 0, generated_tokens_s = 0, computed_tokens_s = 0;
  double steps_s = 0, finished_s = 0, rejected_s = 0;
  uint64_t preemptions = 0, paused = 0;       // in the interval
  Quantiles first_token, inter_token, queue;  // of the last kWindowSamples samples
  std::vector<BatchBucket> batch;             // of the same window: steps by their sequences
  double kv_used = 0, kv_total = 0;           // blocks
  std::vector<LiveShare> tiers;     // used, other: blocks that hold something, in all; empty: one tier
  std::vector<LiveShare> kv_bytes;  // used: bytes of the pool by what they are taken by
  double kv_fragmentation = 0;      // 0..1
  double prefix_hit_ratio = -1;     // of the window's prompt tokens; -1: nothing is known of it
  StepSplit split;
  double busy_ratio = 0;                           // share of the interval in which the device computed
  double bytes_s = 0, flops_s = 0;                 // while it computed, counted from shapes
  AdmissionStop stopped_by = AdmissionStop::none;  // what the newest step said of the queue
};

// What the server can do at most, measured or zero.
struct LivePeaks {
  double bytes_s = 0, flops_s = 0;
};

// One place's fixed numbers, for the words.
struct LiveLimits {
  int seats = 0;  // sequences that run at once
  LivePeaks peaks = {};
};

// Where the words come from that meters and records do not tell.
struct LiveSources {
  LiveLimits limits;  // peaks zero: not known yet
  // Where they are not: takes up to a second and all cores; called once, when somebody looks for the first time
  // and nothing is running. Null: shares of peaks are not told then.
  std::function<LivePeaks()> measure_peaks;
  // Asked once a second by the feed's thread. Null: there is no card.
  std::function<std::vector<CardReading>()> read_cards;
  MachineReport machine;
};

struct Verdict {
  std::string_view cause;  // "idle", "none", "seats", "kv", "budget", "clients", "policy", "host", "bandwidth",
                           // "compute", "alone"
  std::string text;        // one or two sentences
};

// The most telling cause first. Pure.
Verdict what_holds_back(const LiveSample& sample, const LiveLimits& limits);

// Keeps what the next sample is compared with. One thread.
class LiveSampler {
 public:
  static constexpr size_t kWindowSamples = 60;
  // `ledger` may be null. The first sample has no rates.
  LiveSample sample(const std::vector<Meter>& meters, const StepLedger* ledger, TimeNs now);

 private:
  using Buckets = std::vector<uint64_t>;
  struct Seen {  // what was read at one time
    TimeNs at = 0;
    uint64_t steps = 0;                                   // records written
    MeterValues sums;                                     // counters and gauges, over their labels
    std::map<std::string, Buckets, std::less<>> buckets;  // histograms
  };
  static Seen read(const std::vector<Meter>& meters, const StepLedger* ledger, TimeNs now);
  void add_steps(LiveSample& out, const StepLedger& ledger, const Seen& now, const Seen& before) const;
  std::deque<Seen> seen_;  // oldest first, at most kWindowSamples
};

// 0 where nothing of that name was read.
double value_of(const MeterValues& values, std::string_view name);

// The value below which a share `q` of the observations lies: linear within a bucket, the last bound beyond it.
double bucket_quantile(std::span<const double> bounds, std::span<const uint64_t> counts, double q);

}  // namespace sluice
