// Mixtures of experts on the card (ExpertsArgs in tensor/backend.h): the host knows neither which experts a
// step's rows choose nor how many rows each gets, so everything that depends on it is in device memory and a
// recorded step stays valid. Seven launches: choose, place, product, activation, product, sum.
#pragma once

#include <memory>

#include "base/result.h"
#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

class Experts {
 public:
  virtual ~Experts() = default;
  // Enqueues the op. The router's logits are float32, all else bf16; the experts' weights bf16 as load/ makes
  // them.
  virtual void run(const ExpertsArgs& a) = 0;
};

// A few KB come from backend.alloc, now. Error (kResourceExhausted): there are none.
Result<std::unique_ptr<Experts>> make_experts(const Context& context, Backend& backend);

}  // namespace sluice::cuda
