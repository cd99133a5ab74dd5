// One measurement: a configuration under a load, what every client saw, and what the server said of itself; and
// the figures that follow from it. The raw samples are what is kept, so figures can be reckoned again.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tune/configuration.h"
#include "tune/statistics.h"

namespace sluice::tune {

struct Request {
  enum class End : uint8_t { completed, failed, open };  // open: the measurement stopped first
  double sent_s = 0;                                     // since the load began
  double first_s = -1;                                   // first token; -1: none came
  double ended_s = 0;
  int tokens = 0;  // that came
  End end = End::completed;
};

// Steps of up to so many sequences; 0: more than the last bound.
struct BatchBar {
  double upto = 0, steps = 0;
};

// A long context, asked for twice.
struct LongContext {
  int tokens = 0;
  double tok_s = 0;           // one stream, between its tokens
  double first_token_ms = 0;  // of the second time
  double hit_share = 0;       // of its prompt tokens, those that were found in the cache
};

struct Run {
  Configuration configuration;
  std::string load;     // in words; runs of other loads are no repeats of this one
  int concurrency = 0;  // closed loop; 0: arrivals from a trace
  std::string failure;  // the server did not start, or ended: why. Then there are no requests
  std::string device;
  double ready_s = 0, load_s = 0;
  std::vector<Request> requests;
  std::array<double, 3> between_tokens_ms{};  // p50, p95, p99
  std::vector<BatchBar> batches;
  double steps = 0, steps_of_one = 0;
  double prefix_looked_up = 0, prefix_found = 0;  // prompt tokens
  std::string diagnosis, attribution;             // JSON, as the server said; may be empty
  std::vector<LongContext> long_contexts;
};

// From the end of one request, exclusive, to that of another; seconds since the load began.
struct Window {
  double from_s = 0, to_s = 0;
  double length_s() const { return to_s - from_s; }
};

struct Figures {
  std::vector<Window> windows;  // of about equal length behind the warm-up; a sample is of one of them
  std::vector<double> qps_samples, tok_s_samples, p95_samples;
  Estimate qps, tok_s;
  Estimate
      p95_ms;  // the mean is that of all requests together; low and high are as far from it as the windows are
  // Requests were still open that had taken longer than those that ended, and so many that p95 counts them with
  // that.
  bool p95_at_least = false;
  std::array<double, 3> e2e_ms{}, first_token_ms{};  // p50, p95, p99
  int completed = 0, failed = 0, open = 0;           // behind the warm-up
  double warm_up_s = 0, measured_s = 0;
};

// Warm-up: until as many requests have ended as run at the same time, at most a third of the load; of a trace a
// tenth of it. A request counts in the window that it ends in, its tokens where they came, evenly from first to
// last. Windows go from the end of one request to that of another.
Figures figures_of(const Run& run, int windows = 5);

// Whether there is a speed: below two requests that ended behind the warm-up there is no window.
bool is_told(const Figures& figures);

double share_of_one(const Run& run);

}  // namespace sluice::tune
