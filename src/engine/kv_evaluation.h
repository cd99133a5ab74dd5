// What a precision of keys and values costs in quality: a text is computed twice side by side, with the cache
// in full precision and with the wished one, and the distributions of each next token are compared. Blocks are
// converted by the very table and pool that serve; a step is one block, so each row sees its own block in full
// precision and all older ones as the policy has them, as while decoding. Where decode is sparse a step is one
// row. On ref/ full precision is float32, and bf16 beside it what a CPU keeps: half precision. Two models are
// compared in the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

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
  KvSettings kv;
  int block_tokens = 64;  // with tiers and without
  int window_tokens = 0;  // the text is cut into contexts of so many tokens, each computed from its start
  int32_t first_id = -1;  // begins each context; -1: none does
  std::function<void(double)> progress{};  // 0..1
};

struct EvaluatedModel {
  const ModelSpec& spec;
  const Weights& weights;
};

// `wished` with the wished cache beside `full` with the cache in full; both packed by `backend`, which serves
// nothing else. Errors: as below; vocabularies of two sizes.
Result<KvEvaluation> compare_models(const EvaluatedModel& full, const EvaluatedModel& wished, Backend& backend,
                                    std::span<const int32_t> ids, const KvEvaluationWish& wish);

// `ids` is the text without special tokens. Errors: what the device cannot do, too little memory.
Result<KvEvaluation> evaluate_kv(const ModelSpec& spec, const Weights& weights, Backend& backend,
                                 std::span<const int32_t> ids, const KvEvaluationWish& wish);

}  // namespace sluice
