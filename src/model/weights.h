// A model's weights on a device, by slot. Made once at load by load_weights; read by Decoder only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "tensor/backend.h"

namespace sluice {

// What reads the same input, the outputs side by side: one matrix, or one each where ops are not fused.
using SideBySide = std::vector<Weight>;

// Vectors stay f32 in device memory.
struct LayerWeights {
  Buffer attn_norm;                    // [C]
  SideBySide qkv;                      // [(H + 2G) * D, C] together
  Buffer qkv_bias;                     // [(H + 2G) * D] or empty
  Buffer q_norm, k_norm;               // [D] or empty
  Weight o;                            // [C, H * D]
  Buffer post_attn_norm;               // [C] or empty
  Buffer ffn_norm;                     // [C]
  SideBySide gate_up;                  // [2F, C] together, or empty where there are experts
  Weight down;                         // [C, F], likewise
  Weight router;                       // [E, C], or empty where there are none
  std::vector<ExpertWeights> experts;  // [E]
  Buffer post_ffn_norm;                // [C] or empty
};

struct Weights {
  Weight embedding;   // [V, C]
  Weight head;        // [V, C]; empty where the head is tied to the embedding
  Buffer final_norm;  // [C]
  std::vector<LayerWeights> layers;
  int experts_per_token = 0;
  bool fused = true;      // as it was loaded; Decoder does what is left of it
  Buffer inv_freq;        // [rotary / 2]
  Buffer local_inv_freq;  // [rotary / 2] or empty

  const Weight& output() const { return head.rows ? head : embedding; }
  size_t bytes() const;  // all of it, as packed
  // Read to decode one token: all but the embedding table, unless it is the head, and of a layer's experts only
  // as many as one token has.
  size_t bytes_per_token() const;
};

// Progress of a load: weights (numbers, not bytes) done of all. Called from the loading thread.
using LoadProgress = std::function<void(size_t done, size_t total)>;

// Errors name the file and the tensor: missing, wrong shape, unknown type. `fused`: q, k and v are one product,
// gate and up are one, and the addition to the residual is the norm's behind it. Without, each is an op of its
// own, which is slower: for measuring what that is worth. Experts, matrices that a file has as one, and an
// addition behind a norm of its own stay as they are.
Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec, Backend& backend,
                             const LoadProgress& progress, bool fused = true);

}  // namespace sluice
