// Steps of a server as a file: JSON lines, the first of which says what ran them. `serve --record-steps` writes
// it, `bench simulate --fit` reads it.
//
//   {"sluice_steps":1,"model":"…","device":"…","card":true,"batching":"…","max_sequences":256,…}
//   {"step":1,"planned_at":…,"execute_ns":…,"tokens":512,…}      the fields of StepRecord, times in ns
//   {"dropped":12}                                               so many are missing before the next one
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "engine/step_record.h"
#include "sched/simulator/step_cost.h"

namespace sluice::cli {

// What a simulation needs to know of the server besides its steps.
struct RecordedServer {
  std::string model, device, batching;
  bool card = false;
  int max_sequences = 0, step_tokens = 0, mixed_prompt_tokens = 0;
  int context = 0, block_tokens = 0, blocks = 0;
  std::vector<int> windows;        // per layer group; 0: all
  int64_t kv_bytes_per_token = 0;  // of one layer group
};

struct RecordedSteps {
  RecordedServer server;
  std::vector<StepRecord> steps;  // in order; of each, the fields that the file holds
  int64_t dropped = 0;

  StepWork work(const StepRecord& record) const;
};

std::string recorded_header(const RecordedServer& server);  // a line, with its end
void append_recorded_step(std::string& out, const StepRecord& record);
std::string recorded_gap(int64_t dropped);

// Errors name the file and the line.
Result<RecordedSteps> read_recorded_steps(const std::string& path);
Result<RecordedSteps> parse_recorded_steps(const std::string& text, const std::string& name);

}  // namespace sluice::cli
