// From kv.* of sluice.yaml to what the cache does with its blocks.
#pragma once

#include <string>

#include "base/result.h"
#include "kv/tiering.h"
#include "model/spec.h"

namespace sluice {

class Backend;

struct KvSettings {
  std::string precision = "bf16";    // what whole blocks are kept in: bf16, fp8, int8, int4 or tiered
  int tier_full_tokens = 512;        // tiered: newest tokens of a sequence in full precision
  int tier_int8_tokens = 4096;       // tiered: newest tokens that are not yet in int4
  std::string allocation = "paged";  // paged or contiguous_max_context
  int sliding_window = 0;            // tokens that every layer sees at most; 0: as the model says
};

// Errors: settings that contradict each other, named.
Result<KvTiering> tiering_of(const KvSettings& settings);

// Refuses a precision that the device has no kernels for; names those that it has.
Status check_precision(const KvSettings& settings, const Backend& backend);

// The model with the window forced upon its layers: those with a smaller one of their own keep it.
ModelSpec with_window(const ModelSpec& spec, int window);

}  // namespace sluice
