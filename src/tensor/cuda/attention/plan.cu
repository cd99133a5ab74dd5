// One CTA per plan, one thread per sequence. Bound by latency (about 2 µs, once a step), so all work is a few
// scans.
#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/device/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = kMaxSequences;
constexpr int kFewThreads = 288;  // one per CTA of decode, about
constexpr int kTileTokens = 16;   // decode's loads start at multiples of it

struct PlanArgs {
  const int32_t* row_starts;
  const int32_t* kv_lengths;
  int sequences;
  int kv_heads;
  int decode_plans;
  DecodePlan decode[kMaxWindows];
  PrefillPlan prefill;
  int tile_rows;
};

struct Scan {
  int32_t before, total;
};

// Sums over the threads before this one, and over all. `sums` is scratch for the warps.
__device__ Scan scan(int32_t value, int32_t (&sums)[kThreads / 32]) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  int32_t inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();  // the scan before this one may still be reading
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int32_t others = lane < int(blockDim.x) / 32 ? sums[lane] : 0;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, others, step);
    if (lane >= step) others += other;
  }
  const int32_t warps_before = __shfl_sync(~0u, others, (warp + 31) % 32);
  return {inclusive - value + (warp == 0 ? 0 : warps_before), __shfl_sync(~0u, others, 31)};
}

__device__ void plan_decode(const PlanArgs& a, const DecodePlan& plan) {
  __shared__ int32_t sums[kThreads / 32];
  __shared__ DecodeEntry entries[kMaxSequences];
  const int s = int(threadIdx.x);
  DecodeEntry entry{};
  bool mine = false;
  if (s < a.sequences) {
    entry.sequence = s;
    entry.row = a.row_starts[s];
    mine = a.row_starts[s + 1] - entry.row == 1;
    entry.end = a.kv_lengths[s];
    entry.begin = plan.window > 0 ? max(0, entry.end - plan.window) : 0;
    const int32_t tokens = entry.end - entry.begin / kTileTokens * kTileTokens;
    if (mine) entry.chunks = max(1, (tokens + kDecodeChunk - 1) / kDecodeChunk);
  }
  const Scan places = scan(mine ? 1 : 0, sums), chunks = scan(entry.chunks, sums);
  entry.first = chunks.before;
  if (mine) entries[places.before] = plan.entries[places.before] = entry;
  __syncthreads();

  const int total = chunks.total * a.kv_heads;
  const int quota = max(1, (total + plan.ctas - 1) / plan.ctas);
  const auto entry_at = [&](int x) {  // the last that starts at or before x
    int low = 0, high = places.total - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (entries[middle].first * a.kv_heads <= x)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  };
  const auto segment_at = [&](int from, int to) {
    DecodeSegment segment{};
    segment.count = to - from;
    if (from >= to) return segment;
    segment.entry = entry_at(from);
    segment.e = entries[segment.entry];
    const int inside = from - segment.e.first * a.kv_heads;
    segment.head = inside / segment.e.chunks;
    segment.chunk = inside % segment.e.chunks;
    return segment;
  };
  for (int cta = s; cta < plan.ctas; cta += int(blockDim.x)) {
    const int from = min(total, cta * quota), to = min(total, from + quota);
    int begin = from, end = to;  // of what is done in between
    DecodeSegment* segment = plan.shares[cta].segments;
    if (from < to) {
      const DecodeSegment tail = segment_at(to - 1, to);
      const int tail_start = to - 1 - tail.chunk;
      if (tail_start > from && tail.chunk + 1 < tail.e.chunks) {
        end = tail_start;
        *segment++ = segment_at(tail_start, to);
      }
      const DecodeSegment front = segment_at(from, to);
      const int front_start = from - front.chunk, front_end = front_start + front.e.chunks;
      const bool others_are_late = front_start / quota < cta - 1 || front_start % quota == 0;
      if (front.chunk > 0 && others_are_late && front_end < to) begin = front_end;
    }
    if (begin < end) *segment++ = segment_at(begin, end);
    if (from < begin) *segment++ = segment_at(from, begin);
    while (segment < plan.shares[cta].segments + 3) segment++->count = 0;
    plan.shares[cta].quota = quota;
  }
}

// Tiles sorted by context, longest first, in kThreads classes. Within a class the order is whatever the atomics
// give: it changes who computes a tile, not what.
__device__ void plan_prefill(const PlanArgs& a) {
  __shared__ int32_t sums[kThreads / 32];
  __shared__ int32_t starts[kThreads];
  __shared__ int32_t longest;
  const int s = int(threadIdx.x);
  starts[s] = 0;
  if (s == 0) longest = 1;
  int row = 0, rows = 0, cached = 0;
  if (s < a.sequences) {
    row = a.row_starts[s];
    rows = a.row_starts[s + 1] - row;
    cached = a.kv_lengths[s] - rows;
    if (rows <= 1) rows = 0;
  }
  __syncthreads();
  if (rows > 0) atomicMax(&longest, cached + rows);
  __syncthreads();
  const auto class_of = [&](int tile_end) {
    return int(int64_t(longest - min(longest, max(0, cached + tile_end))) * (kThreads - 1) / longest);
  };
  for (int begin = 0; begin < rows; begin += a.tile_rows)
    atomicAdd(&starts[class_of(min(rows, begin + a.tile_rows))], 1);
  __syncthreads();
  const Scan places = scan(starts[s], sums);
  __syncthreads();
  starts[s] = places.before;
  __syncthreads();
  for (int begin = 0; begin < rows; begin += a.tile_rows) {
    const int end = min(rows, begin + a.tile_rows);
    a.prefill.items[atomicAdd(&starts[class_of(end)], 1)] = {s, row + begin, row + end};
  }
  if (s == 0) *a.prefill.count = places.total;
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ PlanArgs a) {
  let_next_start();
  wait_for_previous();
  if (int(blockIdx.x) < a.decode_plans)
    plan_decode(a, a.decode[blockIdx.x]);
  else
    plan_prefill(a);
}

}  // namespace

void make_plans(const Context& context, const BatchInput& batch, int kv_heads,
                std::span<const DecodePlan> decode, const PrefillPlan& prefill, int tile_rows) {
  CHECK(batch.sequences <= kMaxSequences, "more sequences in a step than attention plans for");
  CHECK(decode.size() <= size_t(kMaxWindows));
  PlanArgs a{batch.row_starts, batch.kv_lengths, batch.sequences, kv_heads, int(decode.size()), {},
             prefill,          tile_rows};
  std::copy(decode.begin(), decode.end(), a.decode);
  const int plans = a.decode_plans + (tile_rows > 0 ? 1 : 0);
  // Few sequences need few threads; prefill's classes need all.
  const int threads = tile_rows > 0 ? kThreads : std::max(kFewThreads, (batch.sequences + 31) / 32 * 32);
  if (plans > 0) launch(context, plan_kernel, dim3(unsigned(plans)), dim3(unsigned(threads)), 0, a);
}

}  // namespace sluice::cuda
