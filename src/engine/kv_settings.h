// From kv.* of sluice.yaml to what the cache does with its blocks.
#pragma once

#include <string>

#include "base/result.h"
#include "kv/tiering.h"
#include "model/spec.h"

namespace sluice {

class Backend;

struct KvSettings {
  std::string precision = "bf16";        // what whole blocks are kept in: bf16, fp8, int8, int4 or tiered
  int tier_full_tokens = 512;            // tiered: newest tokens of a sequence in full precision
  int tier_int8_tokens = 4096;           // tiered: newest tokens that are not yet in int4
  std::string allocation = "paged";      // paged or contiguous_max_context
  int sliding_window = 0;                // tokens that every layer sees at most; 0: as the model says
  size_t host_bytes = 0;                 // host memory for blocks that the pool gives up; 0: none
  std::string disk_path{};               // folder for such blocks; empty: none
  size_t disk_bytes = size_t{16} << 30;  // its files take at most
  int sparse_above = 0;      // tokens; longer contexts are decoded over a part of their blocks; 0: off
  double sparse_keep = 0.5;  // that part, of a context's blocks
};

// Errors: settings that contradict each other, named.
Result<KvTiering> tiering_of(const KvSettings& settings);

// Refuses a precision that the device has no kernels for; names those that it has.
Status check_precision(const KvSettings& settings, const Backend& backend);

// Refuses what cannot be kept outside the pool, or read in part, as set, and what the device cannot do of it.
Status check_outside(const KvSettings& settings, bool prefix_cache);
Status check_sparse(const KvSettings& settings, const Backend& backend);

// Slots of host memory: as many as host_bytes hold. Error: it holds too few.
size_t machine_memory_bytes();  // all of it, in use or not

Result<int> host_slots_of(const KvSettings& settings, size_t slot_bytes, int groups);

// The model with the window forced upon its layers: those with a smaller one of their own keep it.
ModelSpec with_window(const ModelSpec& spec, int window);

}  // namespace sluice
