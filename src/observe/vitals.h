// The evidence that diagnosis works on: one plain value of everything that was seen of the server in a window
// of time. Made from meters, step records, request accounts and the host's counters; nothing is reset, so
// several readers do not disturb each other.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/meter.h"
#include "engine/step_record.h"
#include "observe/anomaly.h"
#include "observe/attribution.h"
#include "observe/host_state.h"
#include "observe/live.h"

namespace sluice {

inline constexpr size_t kAdmissionStops = 8;  // values of AdmissionStop

// Of the window's steps: of a fast engine, the last StepLedger::kCapacity of them.
struct StepVitals {
  int steps = 0;
  double execute_s = 0, gap_s = 0, launch_s = 0;        // summed
  double sequences = 0, tokens = 0;                     // means
  double running = 0, waiting = 0;                      // means
  double alone_share = 0;                               // of steps: one sequence
  double alone_waiting_share = 0;                       // of steps: one sequence while others waited
  std::array<double, kAdmissionStops> stopped_share{};  // of steps with a queue: what stopped admission
  double waiting_share = 0;                             // of steps: somebody waited
  double decode_ms = 0,
         mixed_ms = 0;     // means: steps without prompt rows; with prompts beside sequences that generate
  double mixed_share = 0;  // of the time of steps in which somebody generates: steps with prompts too
  int pure_decodes = 0, mixed = 0;                       // steps that these are of
  int graph_hits = 0, graph_misses = 0, graph_none = 0;  // of steps in which each sequence has one row
  double weight_bytes = 0, kv_bytes = 0, flops = 0;      // summed
  int longest_context = 0;

  double bytes_s() const { return execute_s > 0 ? (weight_bytes + kv_bytes) / execute_s : 0; }
  double flops_s() const { return execute_s > 0 ? flops / execute_s : 0; }
  double gap_share() const { return execute_s + gap_s > 0 ? gap_s / (execute_s + gap_s) : 0; }
  double stopped(AdmissionStop by) const { return stopped_share[size_t(by)]; }
};

// Means over the window's seconds, bytes; and what happened in it.
struct KvVitals {
  double used = 0, reserved = 0, cached = 0, wasted = 0, free = 0;
  double preemptions = 0;
  double recomputed_tokens = 0;  // of sequences that had been preempted
  double computed_tokens = 0;    // all rows
  double looked_up_tokens = 0, found_tokens = 0, evicted_blocks = 0;
  double missed_evicted_tokens = 0;  // looked up, not found, but had been there not long ago
  double restored_bytes = 0;         // from host memory

  double pool() const { return used + reserved + cached + wasted + free; }
};

struct HostVitals {
  double usable_cpus = 0;    // hardware threads, no more than the quota
  double compute_cores = 0;  // physical cores of the threads that compute
  double cpu_share = 0;      // of usable cores, by this process
  double load = 0;
  int compute_threads = 0;
  // Of the threads that steps wait for (engine, executor, compute team): the one that waited longest for a
  // core.
  std::string delayed_thread;
  double delay_share = 0;    // of the window
  double delay_ms_turn = 0;  // each time that it wanted to run
  double throttled_share = 0, remote_share = 0;
  double major_faults_s = 0;
  int nodes = 1;
};

// Odd tokens of one kind and one root cause.
struct SeenAnomaly {
  AnomalyKind kind = AnomalyKind::slow_token;
  AnomalyCause cause = AnomalyCause::unknown;
  double count = 0;
  double excess_s = 0;  // of slow tokens: beyond what is usual, summed
};

struct Vitals {
  double window_s = 0;
  bool complete = true;  // false: the server has not been watched for so long
  int seats = 0;         // sequences that run at once
  bool card = false;     // steps run on one
  LivePeaks peaks;       // measured; 0: not known
  double generated_s = 0, prompt_s = 0, finished_s = 0, rejected_s = 0;
  double queue_p50_ms = 0, queue_p95_ms = 0;
  int queued = 0;           // requests that these are of
  double paused_share = 0;  // sequences left out of steps because their clients do not read, of all in steps
  StepVitals steps;
  KvVitals kv;
  HostVitals host;
  std::vector<SeenAnomaly> anomalies;
  std::vector<CardReading> cards;
  WindowAttribution attribution;
};

// Keeps a reading a second for as long as the longest window. Thread-safe but for note(), which one thread
// calls.
struct HostReading {
  TimeNs at = 0;
  HostState state;
};

class VitalsHistory {
 public:
  static constexpr int kLongestWindow_s = 120;

  // What has been counted so far. Of the host, where it was looked at: that costs more than meters do.
  void note(const std::vector<Meter>& meters, const StepLedger* ledger, std::optional<HostState> host,
            TimeNs now);
  // Forgets all: it is another engine's from now on.
  void clear();
  // From the reading nearest to `window_s` before the last one to the last one. Seats, peaks, cards and
  // attribution are the caller's to fill in. The host's part is up to `host_now`, where it is given, from the
  // latest look at it before the window or else the first in it.
  Vitals window(double window_s, const StepLedger* ledger, std::optional<HostReading> host_now = {}) const;

 private:
  struct Reading {
    TimeNs at = 0;
    uint64_t steps = 0;           // records written
    MeterValues values;           // counters and gauges: by name, and by name{labels}
    std::vector<uint64_t> queue;  // buckets of sluice_request_queue_seconds
  };
  HostVitals host_window(TimeNs from, std::optional<HostReading> host_now) const;  // needs mutex_
  mutable std::mutex mutex_;
  std::deque<Reading> readings_;      // guarded by mutex_, oldest first
  std::deque<HostReading> hosts_;     // guarded by mutex_, oldest first; not empty once one is noted
  std::vector<double> queue_bounds_;  // guarded by mutex_
};

StepVitals step_vitals(const std::vector<StepRecord>& records);
HostVitals host_vitals(const HostState& before, const HostState& now, double window_s);

}  // namespace sluice
