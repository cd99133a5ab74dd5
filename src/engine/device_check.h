// Whether a device has kernels for a model, a cache kept as wished, and steps of a size.
#pragma once

#include "engine/kv_settings.h"

namespace sluice {

struct StepSizes {
  int block_tokens = 0;
  int tokens = 0;  // of a step, at most
  int sequences = 0;
};

// Errors name what the device lacks, and the setting, if one would do.
Status check_device(const Backend& backend, const ModelSpec& spec, const KvSettings& kv,
                    const StepSizes& steps);

}  // namespace sluice
