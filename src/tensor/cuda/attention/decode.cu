// Split-KV decode for the memory's limit.
//
// Each CTA of a persistent grid walks its share of the plan: fragments, a fragment being consecutive chunks of
// one kv head of one sequence. Its warps take tiles of 16 tokens in turn, each with a ring of its own in shared
// memory that it fills by cp.async, STAGES - 1 tiles ahead and across the ends of fragments, so that neither
// the softmax nor the joining of warps ever lets the memory idle.
//
// A tile is S^T = K · Q^T, then O^T += V^T · P^T: keys and values are the 16-row operand, the group's heads the
// 8 columns, so of a group of 4 only half of the tensor cores' work is waste (of Q · K^T it would be three
// quarters). S^T becomes the operand P^T by two 8x8 transpositions within the warp.
//
// Warps of a CTA are joined through shared memory. Pieces of one head in several CTAs are joined by the CTA
// that finishes last, in the order of the context, so that the result does not depend on who was last.
#include "base/check.h"
#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/attention/decode_join.h"
#include "tensor/cuda/attention/decode_tiered.h"
#include "tensor/cuda/attention/decode_tile.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/ptx/barrier.h"

namespace sluice::cuda {
namespace {

// Of a multiprocessor, whose registers they share.
constexpr int least_ctas(int width, int columns) {
  return columns > 1 || width >= 128 ? 1 : width > 64 ? 2 : 3;
}

template <int width, int columns, int stages>
__global__ void __launch_bounds__(warps_of(width) * 32, least_ctas(width, columns))
    decode_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(128) std::byte memory[];
  constexpr int kWarps = warps_of(width);
  constexpr int kRingBytes = stages * Loader<width, stages>::kStageBytes;
  if (!a.reads_ahead) wait_for_previous();
  const int quota = a.shares[blockIdx.x].quota;
  const uint32_t ring = ptx::shared_address(memory) + threadIdx.x / 32 * kRingBytes;
  Meeting<width, columns> meeting(memory + kWarps * kRingBytes, a.group);
  Loader<width, stages> loader(a, ring);
  Walk walk(a);
  Attend<width, columns> attend;
  bool waited = !a.reads_ahead;
#pragma unroll 1
  for (int i = 0; i < stages - 1; ++i) {
    if (!waited && !loader.next_is_old()) {
      wait_for_previous();
      waited = true;
    }
    loader.next(a);
  }
  if (!waited) wait_for_previous();
  let_next_start();  // not earlier: launch.h, rule 3
  if (walk.done()) return;
  attend.load_q(a, walk);

  int slot = 0;
  while (true) {
    attend.clear();
    const int tiles = walk.tiles();
#pragma unroll 1
    for (int t = int(threadIdx.x) / 32; t < tiles; t += kWarps) {
      ptx::copy_async_wait<stages - 2>();
      __syncwarp();  // the tile is there for all lanes; and all are done with the one before, whose place is
                     // refilled
      loader.next(a);
      float shrink[columns][2];
      attend.tile(a, ring + uint32_t(slot * Loader<width, stages>::kStageBytes), walk.start() + t * kTileTokens,
                  walk.e, shrink);
      slot = slot + 1 == stages ? 0 : slot + 1;
    }
    meeting.put(a, attend);
    Walk next = walk;
    next.advance(a);
    if (!next.done()) attend.load_q(a, next);
    __syncthreads();
    finish(a, walk, quota, meeting);
    if (next.done()) return;
    walk = next;
  }
}

using Kernel = void (*)(DecodeArgs);
struct Choice {
  Kernel kernel;
  size_t shared_bytes;
  int width, threads;
  decltype(TieredKernel::kernel) tiered = nullptr;  // in the other's place, for a pool with tiers

  bool exists() const { return kernel || tiered; }
  const void* entry() const {
    return tiered ? reinterpret_cast<const void*>(tiered) : reinterpret_cast<const void*>(kernel);
  }
};

// `stages` as many as leave room for the CTAs that a multiprocessor should have. With more than 8 heads the
// meeting place needs more.
template <int width, int stages>
Choice choose(int group) {
  constexpr int kWide = width >= 128 ? 2 : stages, kWarps = warps_of(width);
  constexpr size_t kStage = size_t(kWarps) * Loader<width, stages>::kStageBytes;
  if (group <= 8)
    return {decode_kernel<width, 1, stages>, kStage * stages + Meeting<width, 1>::bytes(group), width,
            kWarps * 32};
  return {decode_kernel<width, 2, kWide>, kStage * kWide + Meeting<width, 2>::bytes(group), width, kWarps * 32};
}

Choice choose(const KvGeometry& geometry, int heads) {
  const int group = heads / geometry.kv_heads;
  if (geometry.tiered) {
    const TieredKernel k = tiered_kernel(geometry, heads);
    return {nullptr, k.shared_bytes, k.width, k.threads, k.kernel};
  }
  switch (geometry.head_dim) {
    case 8:
    case 16:
      return choose<16, 4>(group);
    case 32:
      return choose<32, 4>(group);
    case 64:
      return choose<64, 4>(group);
    case 80:
      return choose<80, 4>(group);
    case 96:
      return choose<96, 3>(group);
    case 128:
      return choose<128, 3>(group);
    case 256:
      return choose<256, 3>(group);
  }
  return {nullptr, 0, 0, 0};
}

int log2_of(int n) {
  int shift = 0;
  while ((1 << shift) < n) ++shift;
  return shift;
}

}  // namespace

bool decode_supports(const KvGeometry& g, int heads) {
  return g.kv_heads > 0 && heads % g.kv_heads == 0 && heads / g.kv_heads <= 16 &&
         (g.block_tokens == 16 || g.block_tokens == 32 || g.block_tokens == 64) && choose(g, heads).exists();
}

int decode_prepare(const Context& context, const KvGeometry& geometry, int heads) {
  CHECK(decode_supports(geometry, heads), "no decode kernel for these heads");
  const Choice choice = choose(geometry, heads);
  CUDA_CHECK(cudaFuncSetAttribute(choice.entry(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  int(choice.shared_bytes)));
  int per_multiprocessor = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, choice.entry(), choice.threads,
                                                           choice.shared_bytes));
  CHECK(per_multiprocessor > 0, "the decode kernel does not fit a multiprocessor");
  return std::min(context.multiprocessors * std::min(per_multiprocessor, 3), kMostCtas);
}

size_t decode_scratch_bytes(const KvGeometry& geometry, int heads, int ctas) {
  return size_t(2 * ctas) * size_t(heads / geometry.kv_heads * (choose(geometry, heads).width / 4)) *
         sizeof(PieceColumn);
}

void decode(const Context& context, const AttentionArgs& args, const DecodePlan& plan, PieceColumn* pieces,
            bool reads_ahead) {
  const KvGeometry& g = args.geometry;
  const Choice choice = choose(g, args.heads);
  const KvRows rows(g);
  const int64_t row_bytes = int64_t(g.head_dim) * 2;
  CHECK(choice.exists() && args.q.dtype == DType::bf16 && args.out.dtype == DType::bf16);
  CHECK(plan.window == args.window && args.out.stride % 4 == 0 && args.q.stride % 2 == 0);
  TieredArgs a{};
  a.q = static_cast<const __nv_bfloat16*>(args.q.data);
  a.out = static_cast<__nv_bfloat16*>(args.out.data);
  a.keys = args.kv.pool + rows.layer_row(args.kv.layer_in_group) * row_bytes;
  a.table = args.batch.tables[args.kv.group];
  a.entries = plan.entries;
  a.shares = plan.shares;
  a.pieces = pieces;
  a.reads_ahead = reads_ahead;
  a.q_stride = args.q.stride;
  a.out_stride = args.out.stride;
  a.block_bytes = int64_t(args.kv.block_bytes);
  a.value_bytes = int(rows.value_rows() * row_bytes);
  a.head_bytes = int(g.block_tokens * row_bytes);
  a.table_stride = args.batch.table_stride;
  if (plan.blocks) {
    a.table = plan.blocks;
    a.table_stride = g.kv_heads * plan.blocks_stride;
    a.head_stride = plan.blocks_stride;
  }
  a.block_shift = log2_of(g.block_tokens);
  a.kv_heads = g.kv_heads;
  a.group = args.heads / g.kv_heads;
  a.head_dim = g.head_dim;
  a.scale = args.softcap > 0 ? 2 * kLog2E * args.scale / args.softcap : kLog2E * args.scale;
  a.softcap = args.softcap * kLog2E;
  a.pool = args.kv.pool;
  a.quarter_bytes = int64_t(args.kv.block_bytes) / kSlotUnits;
  a.first_strip = args.kv.layer_in_group * g.kv_heads;
  const dim3 grid(unsigned(plan.ctas)), block(unsigned(choice.threads));
  if (choice.tiered)
    launch(context, choice.tiered, grid, block, choice.shared_bytes, a);
  else
    launch(context, choice.kernel, grid, block, choice.shared_bytes, a);
}

}  // namespace sluice::cuda
