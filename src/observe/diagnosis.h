// What costs throughput or latency here, ranked. Each rule is a pure function of one window's evidence
// (vitals.h) and speaks only where the evidence is in it. GET /v1/diagnosis and `sluice doctor` print the
// result.
//
// How findings rank: by `lost`, the share of the attainable throughput that the trouble takes, as reckoned from
// the evidence. What steps are bound by when nothing is wasted (memory bandwidth, compute) is a finding too,
// and the last: only other numbers of the model or another machine change it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "observe/vitals.h"

namespace sluice {

struct Evidence {
  std::string_view name;  // unit last: "wait_ms_p95"
  double value = 0;
};

struct Finding {
  std::string_view cause;  // stable, as docs/observability.md lists them: "batch-policy-mismatch"
  double lost = 0;         // 0..1
  std::string text;        // one or two sentences: what happens, and what to do about it
  std::vector<Evidence> evidence;
  std::string setting;  // of sluice.yaml, or in words where there is none

  // Throughput with the trouble gone, against now: 0.25 means a quarter more.
  double gain() const { return lost < 1 ? lost / (1 - lost) : 0; }
};

using Rule = std::optional<Finding> (*)(const Vitals&);

// The rules by what they look at; each group in a file of its own.
std::span<const Rule> device_rules();    // diagnosis_device.cc
std::span<const Rule> batching_rules();  // diagnosis_batching.cc
std::span<const Rule> host_rules();      // diagnosis_host.cc
std::span<const Rule> token_rules();     // diagnosis_tokens.cc

// Most lost first. Empty: nothing ran in the window, or nothing is evident.
std::vector<Finding> diagnose(const Vitals& vitals);

}  // namespace sluice
