// What the kernels of all folders can run, in one place, so that a model or a setting they cannot is refused
// before its weights are read instead of ending the process at its first step.
#pragma once

#include "tensor/backend.h"

namespace sluice::cuda {

// Backend::check.
Status check_needs(const DeviceNeeds& needs);

}  // namespace sluice::cuda
