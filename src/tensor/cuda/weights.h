// From a file's rows to bf16 on the card. Every canonical format lands in bf16 [N, K], row-major, for now:
// integer formats are dequantized (their own kernels come with quantization), f16 and f32 are rounded.
#pragma once

#include <span>

#include "base/result.h"
#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// Decodes with several threads into pinned buffers while the copy engine drains them, so that a file in the
// page cache reaches the card at the pace of the slower of the two. Used at load, by one thread.
class WeightLoader {
 public:
  virtual ~WeightLoader() = default;
  // Errors: K not a multiple of 8; not enough memory on the card (says how much is short and which setting
  // frees it).
  virtual Result<Weight> pack(std::span<const Backend::PackSource> sources) = 0;
  // After the last weight: gives threads and pinned buffers back. pack may not be called any more.
  virtual void finish() = 0;
};

std::unique_ptr<WeightLoader> make_weight_loader(const Context& context, Backend& backend);

}  // namespace sluice::cuda
