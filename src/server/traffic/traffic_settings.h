// What sluice.yaml's `traffic` holds. A plain value; all of it may change while the server runs.
#pragma once

#include <array>
#include <string>
#include <vector>

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

// Another server, or another model of this process, that gets a part of the requests (canary.h).
struct CanarySettings {
  std::string upstream;               // http://HOST:PORT; empty: none
  std::string model;                  // of this process: its path; empty: none, or the one that is served
  std::vector<std::string> settings;  // KEY=VALUE of that model, over those of the one that is served
  std::vector<std::string> steps = {"1", "5", "25"};  // percent of the requests, one step after the other
  int step_requests = 200;                            // that the canary answers before the next
  int max_in_flight = 8;                              // above it the stable pool takes them
  int timeout_ms = 60000;                             // until an answer's head is there
  std::string env = "canary";                         // X-Env that goes there
  double alpha = 0.01;                                // rollbacks of a canary that is not worse
  double more_errors = 0.01, slower = 1.2;            // what is no worse: share, factor

  bool is_here() const { return !model.empty() || !settings.empty(); }
  bool operator==(const CanarySettings&) const = default;
};

// off, patient, quick (circuit_breaker.h). Of the model it is off: nobody else can answer in its place, so that
// it only helps where a client has another server to turn to.
struct BreakerChoice {
  std::string model = "off", upstream = "patient";

  bool operator==(const BreakerChoice&) const = default;
};

struct TrafficSettings {
  LimitSettings limit;
  DegradeSettings degrade;
  RateSettings keys;                       // of each key
  std::array<RateSettings, kLanes> lanes;  // by Lane
  BreakerChoice breaker;
  CanarySettings canary;
  bool recalibrate = false;  // lower the rates while the server delivers less than they promise

  bool operator==(const TrafficSettings&) const = default;
};

}  // namespace sluice
