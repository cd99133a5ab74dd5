// What a start would decide, from the file's header alone: `serve --dry-run` and `inspect`.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/config.h"
#include "model/checkpoint.h"

namespace sluice::cli {

struct MemoryPlan {
  ModelSpec spec;
  std::string path, format;
  size_t file_bytes = 0;       // of tensors
  size_t canonical_bytes = 0;  // of tensors once in canonical formats; a backend's padding comes on top
  size_t device_bytes = 0;     // the same on the device; 0: no device has been asked
  size_t copies_bytes = 0;     // of 4-bit weights as bf16 besides, on the device
  std::string device;          // for people: what it is, and what weights become there
  size_t kv_bytes_per_token = 0;
  int context = 0;
  size_t kv_bytes_full = 0;  // one sequence of the whole context
};

// config's max_context is no more than the model's (check_context).
MemoryPlan plan_memory(const Checkpoint& checkpoint, const Config& config);
// What becomes of it on a device.
void plan_device(MemoryPlan& plan, const Checkpoint& checkpoint, const Backend& backend);
std::string describe(const MemoryPlan& plan);

// `serve --dry-run`: refuses what a start would refuse short of reading the weights; the plan, and what the
// engine would make of this machine's free memory.
Result<std::string> describe_start(const Config& config);

}  // namespace sluice::cli
