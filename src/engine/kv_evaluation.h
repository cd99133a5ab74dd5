// What a precision of keys and values, or of weights, costs in quality: a text is computed side by side by a
// baseline with its cache in full precision and by models with the wished ones, and the distributions of each
// next token are compared. Blocks are converted by the very table and pool that serve; a step is one block, so
// each row sees its own block in full precision and all older ones as the policy has them, as while decoding.
// Where decode is sparse a step is one row. On ref/ full precision is float32, and bf16 beside it what a CPU
// keeps: half precision.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/kv_settings.h"
#include "model/weights.h"
#include "tensor/backend.h"

namespace sluice {

struct KvEvaluation {
  int tokens = 0;              // whose probability was looked at
  double perplexity = 0;       // with the wished precision
  double full_perplexity = 0;  // with full precision
  double mean_kl = 0;          // of the wished from the full distribution, nats per token
  double p99_kl = 0;           // 99 of 100 tokens have less
  double top1_agreement = 0;   // 0..1: the likeliest token is the same
  double bytes_per_token = 0;  // of the cache at the end of a window
  double full_bytes_per_token = 0;
};

struct KvEvaluationWish {
  int block_tokens = 64;  // with tiers and without
  int window_tokens = 0;  // the text is cut into contexts of so many tokens, each computed from its start
  int32_t first_id = -1;  // begins each context; -1: none does
  std::function<void(double)> progress{};  // 0..1
};

// `backend` has packed the weights and serves nothing but evaluated models: one on a card, whose attention
// knows one pool; elsewhere as many as share these weights.
struct EvaluatedModel {
  const ModelSpec& spec;
  const Weights& weights;
  Backend& backend;
  KvSettings kv{};
};

// Each of `wished` with its cache beside `full` with its cache in full (whatever its `kv`), which is computed
// once. `ids` is the text without special tokens. One result for each of `wished`; errors: what the device
// cannot do, too little memory, another vocabulary, a model that computes no numbers. The whole fails where
// `full` does, or the text has no two tokens.
Result<std::vector<Result<KvEvaluation>>> compare_models(const EvaluatedModel& full,
                                                         std::span<const EvaluatedModel> wished,
                                                         std::span<const int32_t> ids,
                                                         const KvEvaluationWish& wish);

}  // namespace sluice
