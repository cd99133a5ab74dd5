#include "engine/device_check.h"

#include "tensor/backend.h"

namespace sluice {

Status check_device(const Backend& backend, const ModelSpec& spec, const KvSettings& kv,
                    const StepSizes& steps) {
  if (Status ok = check_precision(kv, backend); !ok) return ok;
  if (Status ok = check_sparse(kv, backend); !ok) return ok;
  return backend.check({.hidden = spec.hidden,
                        .ffn = spec.ffn,
                        .vocab = spec.vocab,
                        .heads = spec.heads,
                        .kv_heads = spec.kv_heads,
                        .head_dim = spec.head_dim,
                        .experts = spec.experts,
                        .block_tokens = steps.block_tokens,
                        .step_tokens = steps.tokens,
                        .max_sequences = steps.sequences,
                        .kv_tiers = kv.precision != "bf16"});
}

}  // namespace sluice
