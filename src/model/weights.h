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

// Vectors stay f32 in device memory.
struct LayerWeights {
  Buffer attn_norm;                    // [C]
  Weight qkv;                          // [(H + 2G) * D, C]
  Buffer qkv_bias;                     // [(H + 2G) * D] or empty
  Buffer q_norm, k_norm;               // [D] or empty
  Weight o;                            // [C, H * D]
  Buffer post_attn_norm;               // [C] or empty
  Buffer ffn_norm;                     // [C]
  Weight gate_up;                      // [2F, C], or empty where there are experts
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

// Errors name the file and the tensor: missing, wrong shape, unknown type.
Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec, Backend& backend,
                             const LoadProgress& progress);

}  // namespace sluice
