// What weights take, from their descriptions alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/checkpoint.h"
#include "tensor/backend.h"

namespace sluice {

// Of so many elements in a canonical format.
size_t canonical_bytes(const WeightFormat& format, int64_t elements);
// The format that a device keeps a tensor in. Vectors become float32 whatever the backend, and are not worth
// counting as that.
WeightFormat kept_as(const TensorInfo& tensor, const Backend& backend);
// Of all tensors on a device, but for its padding.
size_t kept_bytes(const Checkpoint& checkpoint, const Backend& backend);

}  // namespace sluice
