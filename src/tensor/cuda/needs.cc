#include "tensor/cuda/needs.h"

#include <fmt/format.h>

#include <utility>

#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/kv_layout.h"

namespace sluice::cuda {
namespace {

constexpr int kMostRows = 65535;        // of a step: grids have one block row for each (rows/)
constexpr int kMostColumns = 16384;     // of a norm (rows/norms.cu)
constexpr int kMostVocab = 16 * 32768;  // sampling: 16 blocks of 8 warps of 4,096 ids (sampling/segment.h)
constexpr int kMostGroup = 16;          // query heads per kv head (attention/decode.cu)

Status refuse(std::string what, std::string setting = {}) {
  return Error{ErrorCode::kUnsupported, std::move(what), std::move(setting)};
}

Status check_settings(const DeviceNeeds& n) {
  if (n.max_sequences > kMaxSequences)
    return refuse(
        fmt::format("a card runs at most {} sequences at once, not {}", kMaxSequences, n.max_sequences),
        "engine.max_sequences");
  if (n.step_tokens > kMostRows)
    return refuse(fmt::format("a step on a card has at most {} tokens, not {}", kMostRows, n.step_tokens),
                  "engine.step_tokens");
  if (n.block_tokens != 16 && n.block_tokens != 32 && n.block_tokens != 64)
    return refuse(fmt::format("blocks on a card have 16, 32 or 64 tokens, not {}", n.block_tokens),
                  "engine.block_tokens");
  if (n.kv_tiers && n.block_tokens != kStripTokens)
    return refuse(fmt::format("blocks that a card keeps in several precisions have {} tokens, not {}",
                              kStripTokens, n.block_tokens),
                  "engine.block_tokens");
  return {};
}

}  // namespace

Status check_needs(const DeviceNeeds& n) {
  if (Status settings = check_settings(n); !settings) return settings;
  if (n.kv_heads <= 0 || n.heads % n.kv_heads != 0 || n.heads / n.kv_heads > kMostGroup)
    return refuse(
        fmt::format("the CUDA kernels are made for at most {} query heads per key/value head; this "
                    "model has {} for {}",
                    kMostGroup, n.heads, n.kv_heads));
  const KvGeometry geometry{.block_tokens = n.block_tokens, .kv_heads = n.kv_heads, .head_dim = n.head_dim};
  if (!decode_supports(geometry, n.heads))
    return refuse(
        fmt::format("the CUDA kernels are made for heads of 8, 16, 32, 64, 80, 96, 128 and 256 columns; "
                    "this model's have {}",
                    n.head_dim));
  KvGeometry tiered = geometry;
  tiered.tiered = true;
  if (n.kv_tiers && !decode_supports(tiered, n.heads))
    return refuse(
        fmt::format("the CUDA kernels keep keys and values in bf16 only, except for heads of 64, 128 and 256 "
                    "columns, at most 8 per key/value head; this model has heads of {} columns, {} for {}",
                    n.head_dim, n.heads, n.kv_heads),
        "kv.precision");
  if (n.hidden > kMostColumns)
    return refuse(fmt::format("the CUDA kernels are made for at most {} hidden columns; this model has {}",
                              kMostColumns, n.hidden));
  for (const auto& [name, columns] : {std::pair{"hidden", n.hidden}, {"feed-forward", n.ffn}})
    if (columns % 8 != 0)
      return refuse(fmt::format("the CUDA kernels need a multiple of 8 columns; this model has {} {} columns",
                                columns, name));
  if (n.vocab > kMostVocab)
    return refuse(
        fmt::format("the CUDA kernels sample from at most {} tokens; this model has {}", kMostVocab, n.vocab));
  return {};
}

}  // namespace sluice::cuda
