// Paged, ragged, causal attention over bf16 keys and values (kv_layout.h), grouped heads, windows, soft caps.
//
// Sequences with one row go to the decode kernel: the context is cut into pieces, so that few sequences with
// long contexts still fill the card, and the query heads of a group share every load. Sequences with more rows
// go to the prefill kernel: tiles of rows on the tensor cores. Which work there is, is planned on the device at
// the start of the step (plan.cu) from row_starts and kv_lengths, so a recorded step serves any lengths.
//
// Where blocks of small tiers may lie in the pool, decode reads them as they are (decode_tiered.h). Prefill
// reads bf16: what it needs of them is unpacked, layer by layer (kv_tiers.h).
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

class Attention {
 public:
  virtual ~Attention() = default;
  // First: scratch from the backend (plans for max_sequences, partial results of decode) for a pool of
  // shape.kv. Error (kResourceExhausted): no memory is left for it.
  virtual Status reserve(const WorkspaceShape& shape, const Context& context, Backend& backend) = 0;
  // Bytes that attention needs behind the pool, to unpack small blocks in. What reserve held in their place is
  // given back: so before the pool is allocated.
  virtual size_t give_back_tail() = 0;
  // The pool that KvLayer::pool will point to, which the tail follows; tensor maps are made for it here. After
  // reserve, before the first step, not in a capture.
  virtual void bind_pool(std::byte* pool, size_t bytes, const KvGeometry& geometry) = 0;
  // Enqueues the plan for this step. batch.one_row_sequences, sequences and tokens are known to the host; all
  // else is in device memory.
  virtual void begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) = 0;
  virtual void run(const AttentionArgs& a) = 0;
};

// Of what reserve takes, and the stretch behind the pool: to unpack small blocks in, and to choose blocks.
size_t kv_workspace_bytes(const WorkspaceShape& shape);

std::unique_ptr<Attention> make_attention();

}  // namespace sluice::cuda
