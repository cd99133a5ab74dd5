// out = x · wᵀ (+ bias), bf16 in, float32 sums, bf16 or f32 out. Weights are bf16 [N, K], row-major, one part,
// K a multiple of 8, 256-byte aligned.
//
// Two ways, chosen by a pure function of the shape (heuristics.h): a streaming kernel that reads weights at the
// memory's pace for few rows, and cuBLASLt for many.
#pragma once

#include <memory>

#include "base/result.h"
#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

class Linear {
 public:
  virtual ~Linear() = default;
  // Enqueues the product. Captured as any other launch; the choice depends on shapes only.
  virtual void run(const LinearArgs& a) = 0;
  // Once per weight of a model, at load; it stays where it is at least until tune().
  virtual void prepare(const Weight& w) = 0;
  // Once, after the last weight, with the card otherwise idle: tries algorithms for steps of this shape and
  // keeps the best (tune.h; a second for a model of 8B). Takes memory while it lasts, and none for good.
  virtual void tune(const WorkspaceShape& shape) = 0;
};

// Workspaces come from backend.alloc, now. Error: cuBLASLt cannot be loaded (says where it was looked for).
Result<std::unique_ptr<Linear>> make_linear(const Context& context, Backend& backend);

}  // namespace sluice::cuda
