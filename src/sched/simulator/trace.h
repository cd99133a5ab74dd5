// Who asks for what, and when: the traffic that a simulation is given. A trace is made once, before the run and
// from its seed alone, so that every policy that is tried meets the same requests.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "sched/request.h"

namespace sluice {

struct TracedRequest {
  TimeNs at = 0;   // when its client sends it; no meaning in a closed loop
  int input = 1;   // prompt tokens
  int output = 1;  // tokens that will be generated, which is also what the request asks for
  Lane lane = Lane::standard;
  uint32_t tenant = 0;
  int shared_prefix = 0;    // of the input, first tokens that are the same in all requests of the tenant's
  TimeNs timeout_ns = 0;    // after `at`: it is given up with FinishReason::deadline; 0: never
  TimeNs cancel_ns = 0;     // after `at`: its client leaves; 0: never
  double reads_per_s = 0;   // events that its client takes a second; 0: as they come
  bool host_state = false;  // Sequence::needs_host_state
  TimeNs mask_ns = 0;       // that the host needs after each token until the next may be planned; 0: nothing
};

struct Trace {
  std::vector<TracedRequest> requests;  // by `at`
  int concurrency = 0;                  // > 0: a closed loop, the next is sent when one of so many ends
};

// Tokens of a prompt or an answer.
struct LengthLaw {
  enum class Kind : uint8_t { fixed, uniform, lognormal } kind = Kind::fixed;
  int low = 1, high = 1;  // both possible; of lognormal, what is cut to
  double median = 1;      // of lognormal
  double sigma = 0;       // of its logarithm
};

struct Arrivals {
  enum class Kind : uint8_t { poisson, bursty, closed } kind = Kind::poisson;
  double rate = 1;  // requests a second; of bursty, between bursts
  // Of bursty: two states that are left after exponentially distributed times (a Markov-modulated Poisson
  // process).
  double burst_rate = 0;
  double on_s = 0, off_s = 0;  // means
  int concurrency = 1;         // of closed
};

struct TraceWish {
  Arrivals arrivals;
  LengthLaw input, output;
  std::array<double, kLanes> lanes = {0, 1, 0};  // shares, by Lane
  int tenants = 1;                               // chosen evenly
  int shared_prefix = 0;
  int requests = 0;        // at most; 0: only `duration` ends it
  TimeNs duration_ns = 0;  // arrivals before it; 0: only `requests` does
  uint64_t seed = 1;
};

// `requests` or `duration_ns` is set; a closed loop needs `requests`.
Trace make_trace(const TraceWish& wish);

}  // namespace sluice
