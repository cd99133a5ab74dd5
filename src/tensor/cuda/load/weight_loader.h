// From a file's rows to the card. What kept_format() says stays what it is: eight bits row-major with scales
// behind (rows/quantized_weight.h), 4 bits in a layout of their own (linear/int4_layout.h). Everything else
// lands in bf16 [N, K], row-major: f32 and f16 are rounded to nearest even, integer formats are computed as
// scale * q + min in float32 and rounded. A weight has one part, or one for each run of sources that are 4-bit
// alike or not at all.
#pragma once

#include <memory>
#include <span>

#include "base/result.h"
#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// Several threads decode into pinned buffers while the copy engine drains them, so that a file in the page
// cache reaches the card at the pace of the slower of the two. Used at load, by one thread.
class WeightLoader {
 public:
  virtual ~WeightLoader() = default;
  // Returns once the sources have been read: they need not outlive the call. The bytes may still be on their
  // way; the compute stream waits for them. Rows made up from a seed are made up on the card.
  // Errors: kUnsupported, K not a multiple of 8; kInvalidArgument, sources of different K; kResourceExhausted,
  // not enough memory on the card (how much is short, and what to do).
  virtual Result<Weight> pack(std::span<const Backend::PackSource> sources) = 0;
  // After the last weight: waits for the copies, gives threads and pinned buffers back. pack may not be called
  // any more.
  virtual void finish() = 0;
};

struct WeightLoaderOptions {
  int threads = 0;                        // 0: one per processor that this process may use, at most 16
  size_t buffer_bytes = size_t{2} << 20;  // of pinned memory; the size of a copy, and beyond any row
  int buffers_per_thread = 2;
};

// `backend` owns the weights' memory: its free() gets what cudaMalloc gave. Threads and buffers are made by the
// first pack.
std::unique_ptr<WeightLoader> make_weight_loader(const Context& context, Backend& backend,
                                                 const WeightLoaderOptions& options = {});

// As what a matrix of this format is kept on the card: eight bits where its scales are of whole rows, or of fp8
// blocks of 128 x 128, and its sides are multiples of 16 (blocks: 128); 4 bits where linear/int4_layout.h takes
// them, whose group is then meant; else bf16. Matrices that are packed together are kept as eight bits where
// all of them are, in the same way, and blocks' rows have their order; 4-bit ones whatever stands beside them.
WeightFormat kept_format(const WeightFormat& format, int64_t rows, int64_t cols);

}  // namespace sluice::cuda
