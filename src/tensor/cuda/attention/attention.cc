#include "tensor/cuda/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/check.h"
#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/attention/sparse.h"
#include "tensor/cuda/device/cuda_check.h"
#include "tensor/cuda/kv_tiers/kv_tiers.h"

namespace sluice::cuda {
namespace {

class PagedAttention final : public Attention {
 public:
  size_t give_back_tail() override;
  void bind_pool(std::byte* pool, size_t bytes, const KvGeometry& geometry) override;
  Status reserve(const WorkspaceShape& shape, const Context& context, Backend& backend) override;
  void begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) override;
  void run(const AttentionArgs& a) override;

 private:
  size_t tail_bytes() const;
  Status reserve_unpacked(const WorkspaceShape& shape, Backend& backend);
  Status reserve_sparse(const WorkspaceShape& shape, Backend& backend);
  void enqueue_plans(const BatchInput& batch, int from, int to);
  void run_prefill(const AttentionArgs& a, size_t plan);
  size_t plan_of(const AttentionArgs& a);

  const Context* context_ = nullptr;
  KvGeometry geometry_;
  PlanShape shape_;
  CUtensorMap pool_map_{};

  Buffer plan_memory_, scratch_memory_, prefill_memory_;
  // The first known_ are of windows that layers have asked for.
  std::array<DecodePlan, kMaxWindows> decode_plans_;
  std::array<PrefillPlan, kMaxWindows> prefill_plans_;
  int known_ = 0;
  int planned_ = 0;  // of the known, those that this step has plans for
  bool decoded_since_plans_ = false;
  PieceColumn* pieces_ = nullptr;
  PrefillPieces prefill_pieces_;
  Unpacked unpacked_;
  Buffer unpacked_memory_, tail_;
  SparseChoice choice_;
  Buffer choice_memory_;
};

constexpr int kUnpackedTokens = 1 << 17;  // of prompts, at a time, where the batch can have so many

// Blocks of the longest context, and those that the stretch for unpacked ones holds.
Unpacked unpacked_for(const WorkspaceShape& shape) {
  Unpacked unpacked;
  unpacked.row_blocks = (shape.max_context + kStripTokens - 1) / kStripTokens + 1;
  unpacked.blocks = std::max(
      unpacked.row_blocks, std::min(kUnpackedTokens / kStripTokens, shape.max_sequences * unpacked.row_blocks));
  return unpacked;
}
size_t unpacked_bytes(const Unpacked& unpacked, const KvGeometry& g) {
  return size_t(unpacked.blocks) * size_t(KvRows(g).layer_rows() * g.head_dim) * 2;
}
int choice_stride(const WorkspaceShape& shape) {
  return (shape.max_context + shape.kv.block_tokens - 1) / shape.kv.block_tokens + 1;
}
size_t choice_places(const WorkspaceShape& shape) {
  return size_t(shape.max_sequences) * size_t(shape.kv.kv_heads) * size_t(choice_stride(shape));
}

void PagedAttention::bind_pool(std::byte* pool, size_t bytes, const KvGeometry& geometry) {
  CHECK(context_ && geometry.kv_heads == geometry_.kv_heads && geometry.head_dim == geometry_.head_dim &&
            geometry.block_tokens == geometry_.block_tokens,
        "attention was reserved for another pool");
  geometry_ = geometry;
  unpacked_.pool = pool;
  unpacked_.first_row = int64_t(bytes / (size_t(geometry.head_dim) * 2));
  if (prefill_uses_wgmma(geometry)) pool_map_ = prefill_pool_map(pool, bytes + tail_bytes(), geometry);
}

size_t PagedAttention::give_back_tail() {
  tail_ = {};
  return tail_bytes();
}

size_t PagedAttention::tail_bytes() const { return unpacked_bytes(unpacked_, geometry_); }

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
  geometry_ = shape.kv;
  prefill_prepare(geometry_);
  shape_ = {.kv_heads = geometry_.kv_heads,
            .heads = shape.max_heads,
            .block_tokens = geometry_.block_tokens,
            .tile_rows = prefill_tile_rows(geometry_),
            .most_heads = prefill_heads_per_tile(geometry_, shape.max_heads),
            .tile_tokens = prefill_tile_tokens(geometry_)};
  const int ctas = decode_prepare(context, geometry_, shape_.heads);

  Carver plan;
  std::array<size_t, kMaxWindows> entries_at, shares_at, counts_at, items_at, before_at;
  const int before_stride = geometry_.tiered ? (shape.max_context + kStripTokens - 1) / kStripTokens + 1 : 0;
  for (size_t i = 0; i < kMaxWindows; ++i) {
    entries_at[i] = plan.add<DecodeEntry>(kMaxSequences + 1);
    shares_at[i] = plan.add<DecodeShare>(size_t(ctas));
    counts_at[i] = plan.add<int32_t>(1);
    before_at[i] = plan.add<int32_t>(size_t(shape.max_sequences) * size_t(before_stride));
    items_at[i] = plan.add<PrefillItem>(
        most_prefill_items(shape.max_tokens, shape.max_sequences, shape_.tile_rows, context.multiprocessors));
  }
  Carver prefill;
  const size_t slots = shape_.tile_tokens > 0 ? size_t(prefill_slots(context.multiprocessors)) : 0;
  const size_t arrived_at = prefill.add<int32_t>(slots * PrefillPieces::kWarps);
  const size_t sums_at = prefill.add<std::byte>(slots * prefill_slot_bytes(geometry_));
  const size_t scratch_bytes = decode_scratch_bytes(geometry_, shape_.heads, ctas);
  plan_memory_ = backend.alloc(plan.bytes());
  scratch_memory_ = backend.alloc(scratch_bytes);
  prefill_memory_ = backend.alloc(prefill.bytes());
  if (!plan_memory_.data() || !scratch_memory_.data() || (slots > 0 && !prefill_memory_.data()))
    return Error{
        ErrorCode::kResourceExhausted,
        fmt::format("attention's scratch of {:.2f} GiB", gib(plan.bytes() + scratch_bytes + prefill.bytes()))};

  std::byte* const p = plan_memory_.as<std::byte>();
  for (size_t i = 0; i < kMaxWindows; ++i) {
    decode_plans_[i] = {reinterpret_cast<DecodeEntry*>(p + entries_at[i]),
                        reinterpret_cast<DecodeShare*>(p + shares_at[i]), ctas};
    if (geometry_.tiered) {
      decode_plans_[i].before = reinterpret_cast<int32_t*>(p + before_at[i]);
      decode_plans_[i].before_stride = before_stride;
    }
    prefill_plans_[i] = {reinterpret_cast<int32_t*>(p + counts_at[i]),
                         reinterpret_cast<PrefillItem*>(p + items_at[i]), 0};
  }
  if (slots > 0) {  // memory comes as zeros, which is what `arrived` has to be
    std::byte* const q = prefill_memory_.as<std::byte>();
    prefill_pieces_ = {reinterpret_cast<float4*>(q + sums_at), reinterpret_cast<int32_t*>(q + arrived_at)};
  }
  pieces_ = scratch_memory_.as<PieceColumn>();
  CUDA_CHECK(
      cudaMemset(pieces_, 0xff, scratch_memory_.bytes()));  // after the zeros of alloc, on whatever stream
  CUDA_CHECK(cudaDeviceSynchronize());
  if (geometry_.sparse.on())
    if (Status reserved = reserve_sparse(shape, backend); !reserved) return reserved;
  return geometry_.tiered ? reserve_unpacked(shape, backend) : Status{};
}

Status PagedAttention::reserve_sparse(const WorkspaceShape& shape, Backend& backend) {
  choice_.stride = choice_stride(shape);
  if (choice_.stride > kMostSparseBlocks)
    return Error{ErrorCode::kUnsupported,
                 fmt::format("kv.sparse_above on a card is for contexts of at most {} blocks, not {}",
                             kMostSparseBlocks, choice_.stride),
                 "kv.sparse_above"};
  sparse_prepare(geometry_, shape.max_heads, choice_.stride);
  Carver carver;
  const size_t scores_at = carver.add<float>(choice_places(shape)),
               blocks_at = carver.add<KvRef>(choice_places(shape));
  choice_memory_ = backend.alloc(carver.bytes());
  if (!choice_memory_.data())
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("{:.2f} GiB to choose blocks in", gib(carver.bytes()))};
  choice_.scores = reinterpret_cast<float*>(choice_memory_.as<std::byte>() + scores_at);
  choice_.blocks = reinterpret_cast<KvRef*>(choice_memory_.as<std::byte>() + blocks_at);
  return {};
}

Status PagedAttention::reserve_unpacked(const WorkspaceShape& shape, Backend& backend) {
  kv_tiers_prepare(geometry_);
  unpacked_ = unpacked_for(shape);
  Carver carver;
  const size_t order_at = carver.add<int32_t>(size_t(shape.max_sequences));
  const size_t places_at = carver.add<int2>(size_t(shape.max_sequences));
  const size_t rows_at = carver.add<int32_t>(size_t(shape.max_sequences) * size_t(unpacked_.row_blocks));
  unpacked_memory_ = backend.alloc(carver.bytes());
  tail_ = backend.alloc(tail_bytes());
  if (!unpacked_memory_.data() || !tail_.data())
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("{:.2f} GiB to unpack keys and values in", gib(carver.bytes() + tail_bytes()))};
  std::byte* const p = unpacked_memory_.as<std::byte>();
  unpacked_.order = reinterpret_cast<int32_t*>(p + order_at);
  unpacked_.places = reinterpret_cast<int2*>(p + places_at);
  unpacked_.rows = reinterpret_cast<int32_t*>(p + rows_at);
  return {};
}

void PagedAttention::begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) {
  CHECK(context_ && heads == shape_.heads && geometry.kv_heads == geometry_.kv_heads &&
            geometry.head_dim == geometry_.head_dim && geometry.block_tokens == geometry_.block_tokens,
        "attention was reserved for other heads");
  planned_ = known_;
  enqueue_plans(batch, 0, known_);
  if (batch.prompt_blocks > 0) place_prompts(*context_, batch, unpacked_);
}

// Of the known windows from `from` to before `to`.
void PagedAttention::enqueue_plans(const BatchInput& batch, int from, int to) {
  decoded_since_plans_ = false;
  const size_t first = size_t(from), count = size_t(to - from);
  const bool decode = batch.one_row_sequences > 0, prefill = batch.one_row_sequences < batch.sequences;
  make_plans(*context_, batch, shape_, std::span(decode_plans_).subspan(first, decode ? count : 0),
             std::span(prefill_plans_).subspan(first, prefill ? count : 0));
}

// The kinds of a model's layers are learnt as its layers run: the first step that meets one plans for it on the
// way.
size_t PagedAttention::plan_of(const AttentionArgs& a) {
  const bool sparse = geometry_.sparse.on() && a.window == 0;
  int i = 0;
  while (i < known_ &&
         (decode_plans_[size_t(i)].window != a.window || decode_plans_[size_t(i)].sparse.on() != sparse))
    ++i;
  CHECK(i < kMaxWindows, "more kinds of layers than attention plans for");
  if (i == known_) {
    DecodePlan& plan = decode_plans_[size_t(i)];
    plan.window = prefill_plans_[size_t(i)].window = a.window;
    plan.group = a.kv.group;
    if (sparse)
      plan.sparse = geometry_.sparse, plan.blocks = choice_.blocks, plan.blocks_stride = choice_.stride;
    ++known_;
  }
  if (i >= planned_) {
    enqueue_plans(a.batch, planned_, i + 1);
    planned_ = i + 1;
  }
  return size_t(i);
}

void PagedAttention::run(const AttentionArgs& a) {
  const size_t plan = plan_of(a);
  const bool sparse = decode_plans_[plan].sparse.on(), prompts = a.batch.one_row_sequences < a.batch.sequences;
  if (sparse && prompts) bound_prompts(*context_, a);
  if (a.batch.one_row_sequences > 0) {
    if (sparse) choose_blocks(*context_, a, choice_);
    // Sparse decode's tables were made just now.
    decode(*context_, a, decode_plans_[plan], pieces_, decoded_since_plans_ && !sparse);
    decoded_since_plans_ = true;
  }
  if (prompts) run_prefill(a, plan);
}

void PagedAttention::run_prefill(const AttentionArgs& a, size_t plan) {
  const PrefillPlan& whole = prefill_plans_[plan];
  if (!prefill_uses_wgmma(geometry_)) return prefill_general(*context_, a, whole);
  if (a.batch.prompt_blocks == 0) return prefill_wgmma(*context_, a, whole, prefill_pieces_, pool_map_);
  const int rounds = most_rounds(unpacked_, a.batch.prompt_blocks);
  for (int round = 0; round < rounds; ++round) {
    // One round has the step's plan; more make their own, each layer anew. That is rare, and takes 5 us.
    if (rounds > 1) make_plans(*context_, a.batch, shape_, {}, std::span(&whole, 1), {unpacked_.places, round});
    unpack_blocks(*context_, a.batch, geometry_, a.kv, unpacked_, round);
    prefill_wgmma(*context_, a, whole, prefill_pieces_, pool_map_, &unpacked_);
  }
}

}  // namespace

size_t kv_workspace_bytes(const WorkspaceShape& shape) {
  const size_t to_unpack = shape.kv.tiered ? unpacked_bytes(unpacked_for(shape), shape.kv) : 0;
  const size_t to_choose = shape.kv.sparse.on() ? choice_places(shape) * (sizeof(float) + sizeof(KvRef)) : 0;
  return to_unpack + to_choose;
}

std::unique_ptr<Attention> make_attention() { return std::make_unique<PagedAttention>(); }

}  // namespace sluice::cuda
