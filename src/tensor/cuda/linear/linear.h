// out = x · wᵀ (+ bias), bf16 in, float32 sums, bf16 or f32 out. Weights are [N, K], 256-byte aligned:
// row-major bf16 with K a multiple of 8; eight bits with scales (rows/quantized_weight.h), one part, K and N
// multiples of 16, that are multiplied with x quantized by rows; or 4 bits (int4_layout.h). Parts of bf16 and
// of 4 bits may stand side by side.
//
// Two ways, chosen by a pure function of the shape (heuristics.h): a streaming kernel that reads weights at the
// memory's pace for few rows, and cuBLASLt for many.
// 4-bit weights have ways of their own (int4_linear.h).
#pragma once

#include <memory>

#include "base/result.h"
#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/rows/quantized_rows.h"

namespace sluice::cuda {

class Linear {
 public:
  virtual ~Linear() = default;
  // Enqueues the product. Captured as any other launch; the choice depends on shapes only.
  virtual void run(const LinearArgs& a) = 0;
  // Once per weight of a model, at load; it stays where it is at least until tune().
  virtual void prepare(const Weight& w) = 0;
  // Once, after the last weight: keeps 4-bit weights as bf16 too, where so many bytes hold them all.
  virtual void copy(size_t spare) = 0;
  // Once, after that, with the card otherwise idle: tries algorithms for steps of this shape and keeps the best
  // (tune.h; a second for a model of 8B). Takes memory while it lasts.
  virtual void tune(const WorkspaceShape& shape) = 0;
  // Once, before the first product with eight-bit weights: memory for x, of backend.alloc. Error: there is
  // none.
  virtual Status reserve(const WorkspaceShape& shape) = 0;

  // What a kernel that writes a tensor from which products may follow is to do beside (eight_bit.h): write it
  // quantized there, or nothing (null). Other writers of activations say so by `written`.
  virtual const QuantizedRows* copy_wanted(const Tensor& out) = 0;
  // Whether the tensor itself can be left unwritten then: none but eight-bit weights have so many columns.
  virtual bool only_copy_wanted(const Tensor& out) const = 0;
  virtual void written(const Tensor& out) = 0;
};

// Workspaces come from backend.alloc, now. Error: cuBLASLt cannot be loaded (says where it was looked for).
Result<std::unique_ptr<Linear>> make_linear(const Context& context, Backend& backend);

}  // namespace sluice::cuda
