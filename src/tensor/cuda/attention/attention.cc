#include "tensor/cuda/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/check.h"
#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/device/cuda_check.h"

namespace sluice::cuda {
namespace {

constexpr int kLeastTileRows = 16;  // of prefill: what the list of tiles is sized for

class PagedAttention final : public Attention {
 public:
  void bind_pool(std::byte* pool, size_t bytes, const KvGeometry& geometry) override;
  Status reserve(const WorkspaceShape& shape, const Context& context, Backend& backend) override;
  void begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) override;
  void run(const AttentionArgs& a) override;

 private:
  const DecodePlan& decode_plan(const AttentionArgs& a);

  const Context* context_ = nullptr;
  KvGeometry geometry_;
  int heads_ = 0;
  CUtensorMap pool_map_{};
  int tile_rows_ = 0;  // of prefill

  Buffer plan_memory_, scratch_memory_;
  std::array<DecodePlan, kMaxWindows> plans_;  // the first known_ are of windows that layers have asked for
  int known_ = 0;
  int planned_ = 0;  // of the known, those that this step has plans for
  PrefillPlan prefill_plan_{};
  PieceColumn* pieces_ = nullptr;
};

void PagedAttention::bind_pool(std::byte* pool, size_t bytes, const KvGeometry& geometry) {
  CHECK(context_ && geometry.kv_heads == geometry_.kv_heads && geometry.head_dim == geometry_.head_dim &&
            geometry.block_tokens == geometry_.block_tokens,
        "attention was reserved for another pool");
  geometry_ = geometry;
  if (prefill_uses_wgmma(geometry)) pool_map_ = prefill_pool_map(pool, bytes, geometry);
}

// Cuts one allocation into arrays.
class Carver {
 public:
  template <typename T>
  size_t add(size_t count) {
    const size_t at = bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

Status PagedAttention::reserve(const WorkspaceShape& shape, const Context& context, Backend& backend) {
  CHECK(shape.max_sequences <= kMaxSequences, "more sequences in a step than attention plans for");
  context_ = &context;
  heads_ = shape.max_heads;
  geometry_ = shape.kv;
  prefill_prepare(geometry_);
  tile_rows_ = prefill_tile_rows(geometry_);
  CHECK(tile_rows_ >= kLeastTileRows);
  const int ctas = decode_prepare(context, geometry_, heads_);

  Carver plan;
  std::array<size_t, kMaxWindows> entries_at, shares_at;
  for (size_t i = 0; i < kMaxWindows; ++i) {
    entries_at[i] = plan.add<DecodeEntry>(kMaxSequences + 1);
    shares_at[i] = plan.add<DecodeShare>(size_t(ctas));
  }
  const size_t count_at = plan.add<int32_t>(1);
  const size_t items_at =
      plan.add<PrefillItem>(size_t(shape.max_tokens / kLeastTileRows + shape.max_sequences + 1));
  plan_memory_ = backend.alloc(plan.bytes());
  scratch_memory_ = backend.alloc(decode_scratch_bytes(geometry_, heads_, ctas));
  if (!plan_memory_.data() || !scratch_memory_.data())
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("attention's scratch of {:.2f} GiB",
                             gib(plan.bytes() + decode_scratch_bytes(geometry_, heads_, ctas)))};

  std::byte* const p = plan_memory_.as<std::byte>();
  for (size_t i = 0; i < kMaxWindows; ++i)
    plans_[i] = {reinterpret_cast<DecodeEntry*>(p + entries_at[i]),
                 reinterpret_cast<DecodeShare*>(p + shares_at[i]), ctas, 0};
  prefill_plan_ = {reinterpret_cast<int32_t*>(p + count_at), reinterpret_cast<PrefillItem*>(p + items_at)};
  pieces_ = scratch_memory_.as<PieceColumn>();
  CUDA_CHECK(
      cudaMemset(pieces_, 0xff, scratch_memory_.bytes()));  // after the zeros of alloc, on whatever stream
  CUDA_CHECK(cudaDeviceSynchronize());
  return {};
}

void PagedAttention::begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) {
  CHECK(context_ && heads == heads_ && geometry.kv_heads == geometry_.kv_heads &&
            geometry.head_dim == geometry_.head_dim && geometry.block_tokens == geometry_.block_tokens,
        "attention was reserved for other heads");
  planned_ = batch.one_row_sequences > 0 ? known_ : 0;
  const bool prefill = batch.one_row_sequences < batch.sequences;
  make_plans(*context_, batch, geometry.kv_heads, std::span(plans_).first(size_t(planned_)), prefill_plan_,
             prefill ? tile_rows_ : 0);
}

// The windows of a model's layers are learnt as its layers run: the first step that meets one plans for it on
// the way.
const DecodePlan& PagedAttention::decode_plan(const AttentionArgs& a) {
  int i = 0;
  while (i < known_ && plans_[size_t(i)].window != a.window) ++i;
  CHECK(i < kMaxWindows, "more kinds of windows than attention plans for");
  DecodePlan& plan = plans_[size_t(i)];
  if (i == known_) {
    plan.window = a.window;
    ++known_;
  }
  if (i >= planned_) {
    const auto missing = std::span(plans_).subspan(size_t(planned_), size_t(i + 1 - planned_));
    make_plans(*context_, a.batch, a.geometry.kv_heads, missing, prefill_plan_, 0);
    planned_ = i + 1;
  }
  return plan;
}

void PagedAttention::run(const AttentionArgs& a) {
  if (a.batch.one_row_sequences > 0) {
    // launch.h's rule to the letter; what reading ahead would give: decode.h.
    decode(*context_, a, decode_plan(a), pieces_, ReadAhead::nothing);
  }
  if (a.batch.one_row_sequences < a.batch.sequences) {
    if (prefill_uses_wgmma(geometry_))
      prefill_wgmma(*context_, a, prefill_plan_, pool_map_);
    else
      prefill_general(*context_, a, prefill_plan_);
  }
}

}  // namespace

std::unique_ptr<Attention> make_attention() { return std::make_unique<PagedAttention>(); }

}  // namespace sluice::cuda
