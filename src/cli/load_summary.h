// What clients felt under a load: the result of `bench serve` and `bench simulate`, in one form.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "server/json_fields.h"

namespace sluice::cli {

struct Spread {
  double p50 = NAN, p95 = NAN, p99 = NAN, mean = NAN;
};

// Percentiles by linear interpolation between the two nearest ranks.
Spread spread(std::vector<double> values);

struct LoadSummary {
  double wall_s = 0;
  Spread ttft, itl, e2e;  // ms
  Spread sent_late;       // ms, of an open loop that is driven for real: how far its client fell behind
  size_t completed = 0, failed = 0;
  int64_t tokens = 0;  // generated
  int64_t events = 0;  // that brought them, where they were streamed: several tokens may come in one
  std::string first_error;

  double qps() const { return double(completed) / wall_s; }
  double output_tok_s() const { return double(tokens) / wall_s; }
};

// The members of contract.md's object; the caller opens and closes it.
void write_members(JsonWriter& out, const LoadSummary& summary);
void write_spread(JsonWriter& out, const char* name, const Spread& spread);

// Tables for people.
std::string describe(const LoadSummary& summary);
std::string describe_row(const char* name, const Spread& spread);

}  // namespace sluice::cli
