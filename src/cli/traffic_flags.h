// How traffic is said on a command line, as values; and traces read from files.
#pragma once

#include <array>
#include <string>

#include "base/result.h"
#include "sched/simulator/simulator.h"
#include "sched/simulator/trace.h"

namespace sluice::cli {

// 512 | 512±128 (or 512+-128; evenly distributed) | uniform:LOW,HIGH | lognormal:MEDIAN,SIGMA[,MOST]
Result<LengthLaw> parse_length(const std::string& text);
// poisson:RATE | bursty:RATE,BURST_RATE,ON_S,OFF_S | closed:CONCURRENCY
Result<Arrivals> parse_arrivals(const std::string& text);
// interactive:SHARE,standard:SHARE,batch:SHARE; lanes left out get none
Result<std::array<double, kLanes>> parse_lanes(const std::string& text);
// NAME=MICROSECONDS,…; names as in HostCost without their _ns
Status parse_host(const std::string& text, HostCost& host);

// CSV (timestamp,input,output[,lane[,tenant[,shared_prefix]]], a head line is skipped) or JSON lines with
// members of these names; timestamps in seconds, the first is 0 of the trace. Errors name file and line.
Result<Trace> read_trace(const std::string& path);
Result<Trace> parse_trace(const std::string& text, const std::string& name);

}  // namespace sluice::cli
