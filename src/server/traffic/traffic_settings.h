// What sluice.yaml's `traffic` holds. A plain value; all of it may change while the server runs.
#pragma once

#include <array>
#include <string>

#include "sched/request.h"

namespace sluice {

// Of one key, or of one lane, all clients together. 0: no bound.
struct RateSettings {
  int requests_per_minute = 0;
  int tokens_per_minute = 0;  // prompt and answer

  bool operator==(const RateSettings&) const = default;
};

// How many requests may wait for their first token (adaptive_limit.h).
struct LimitSettings {
  std::string mode = "off";  // off, rule, gradient
  int window_s = 10;         // what is looked back at
  int min = 10, max = 1024;  // whatever was measured
  double qps_share = 0.8;    // rule: of the first tokens in a second
  int target_ms = 200;       // rule: p95 of the time to first token above which places are taken away
  int ms_per_place = 50;     // rule: one place for so much of it
  double tolerance = 1.5;    // gradient: times the usual latency that is no sign of a queue
  // Of the places, what these lanes may fill: batch is refused first, then standard, interactive last.
  double batch_share = 0.5, standard_share = 0.8;

  bool operator==(const LimitSettings&) const = default;
};

// Answers that are cut short before requests are refused.
struct DegradeSettings {
  int max_tokens = 0;  // 0: none is
  double above = 0.5;  // of the places that the request's lane may fill

  bool operator==(const DegradeSettings&) const = default;
};

struct TrafficSettings {
  LimitSettings limit;
  DegradeSettings degrade;
  RateSettings keys;                       // of each key
  std::array<RateSettings, kLanes> lanes;  // by Lane
  bool recalibrate = false;                // lower the rates while the server delivers less than they promise

  bool operator==(const TrafficSettings&) const = default;
};

}  // namespace sluice
