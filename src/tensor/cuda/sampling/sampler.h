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
  // Of `shape`: vocab, max_logit_rows (of one run), max_tokens (rows of one step), max_sequences and
  // max_context. Per slot, what the wishes of a step may point to: per sequence one mask and kListWords words
  // of biases and bans, and histories of max_sequences * max_context ids (at most kMaxHistoryWords, more than
  // any cache on one card holds), all from one pool. `stage` CHECKs it. Error
  // (kResourceExhausted): no memory is left for it.
  static constexpr uint64_t kListWords = 4096, kMaxHistoryWords = uint64_t(64) << 20;
  virtual Status reserve(const WorkspaceShape& shape, const Context& context, Backend& backend) = 0;
  // Host: flattens the wishes into pinned memory of `slot` and enqueues their upload on `copy_stream`. Rows up
  // to padded_rows want nothing.
  virtual void stage(int slot, std::span<const SampleRow> rows, int padded_rows, cudaStream_t copy_stream) = 0;
  // Enqueues sampling of a.logits' rows with the wishes staged for a.slot from a.first_row on. a.results is
  // pinned host memory that the kernel writes itself; of rows that want nothing it is left alone. a.rows is not
  // read. The logits stay as they are.
  virtual void run(const SampleArgs& a) = 0;
};

std::unique_ptr<Sampler> make_sampler();

}  // namespace sluice::cuda
