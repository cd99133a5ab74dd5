// Sampling on the card, the same rules as tensor/sampling.h (which judges it in the tests): softcap, penalties,
// bias, bans, mask, temperature, top-k, top-p, min-p, counter-based random numbers, log-probabilities of the
// model's own distribution.
#pragma once

#include <memory>

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual void reserve(int vocab, int max_rows, const Context& context, Backend& backend) = 0;
  // Host: flattens the wishes into pinned memory of `slot` and enqueues their upload on `copy_stream`. Rows up
  // to padded_rows want nothing.
  virtual void stage(int slot, std::span<const SampleRow> rows, int padded_rows, cudaStream_t copy_stream) = 0;
  // Enqueues sampling of a.logits' rows with the wishes staged for a.slot from a.first_row on. a.results is
  // pinned host memory that the kernel writes itself. a.rows is not read.
  virtual void run(const SampleArgs& a) = 0;
};

std::unique_ptr<Sampler> make_sampler();

}  // namespace sluice::cuda
