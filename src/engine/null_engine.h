// An engine whose model computes nothing and answers at once: for measuring all that stands around a model,
// HTTP above all (`--dummy null`). Scheduler, blocks, masks and streams are the real ones.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"

namespace sluice {

// Every token is equally likely; which one comes follows from its position, unless a mask or min_tokens rules
// it out: then the next id that may come. The cache has no bytes, and room for max_sequences requests of a
// moderate length (kv_size.h). Errors: settings that contradict each other (named).
Result<std::unique_ptr<Engine>> make_null_engine(const ModelSpec& spec, std::vector<int32_t> end_ids,
                                                 const EngineConfig& config);

}  // namespace sluice
