// One CTA per plan, one thread per sequence. Bound by latency (about 2 µs, once a step), so all work is a few
// scans.
#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/attention/prefill_split.h"
#include "tensor/cuda/device/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = kMaxSequences;
constexpr int kFewThreads = 288;  // one per CTA of decode, about
constexpr int kTileTokens = 16;   // decode's loads start at multiples of it

struct PlanArgs {
  const int32_t* row_starts;
  const int32_t* kv_lengths;
  const int32_t* tables[kMaxLayerGroups];
  int table_stride;
  int sequences;
  int multiprocessors;
  PlanShape shape;
  int decode_plans;
  DecodePlan decode[kMaxWindows];
  PrefillPlan prefill[kMaxWindows];
  PrefillRound round;
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

// Tokens of a context as decode sees it.
__device__ int length_of(const PlanArgs& a, const DecodePlan& plan, int sequence) {
  const int length = a.kv_lengths[sequence];
  return plan.sparse.applies(1, length, 0) ? plan.sparse.kept_tokens(length, a.shape.block_tokens) : length;
}

// Quarters that a context's blocks take, and those before each of its blocks: a warp per sequence, with loads
// of several blocks a lane under way.
__device__ void weigh_contexts(const PlanArgs& a, const DecodePlan& plan, int32_t (&weights)[kMaxSequences]) {
  constexpr int kEach = 8;
  const int lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  for (int s = int(threadIdx.x) / 32; s < a.sequences; s += warps) {
    if (a.row_starts[s + 1] - a.row_starts[s] != 1) continue;
    const int end = length_of(a, plan, s), begin = plan.window > 0 ? max(0, end - plan.window) : 0;
    const int first = begin / a.shape.block_tokens,
              blocks = (end + a.shape.block_tokens - 1) / a.shape.block_tokens;
    const int32_t* table = a.tables[plan.group] + int64_t(s) * a.table_stride;
    int32_t* before = plan.before + int64_t(s) * plan.before_stride;
    int total = 0;
    for (int base = first; base < blocks; base += 32 * kEach) {
      KvRef refs[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int b = base + i * 32 + lane;
        refs[i] = b < blocks ? table[b] : kNoKvRef;
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int b = base + i * 32 + lane;
        const int own = refs[i] < 0 ? 0 : plan.sparse.on() ? kSlotUnits : kv_units(kv_tier(refs[i]));
        int sum = own;
        for (int step = 1; step < 32; step *= 2) {
          const int other = __shfl_up_sync(~0u, sum, step);
          if (lane >= step) sum += other;
        }
        if (b < blocks) before[b] = total + sum - own;
        total += __shfl_sync(~0u, sum, 31);
      }
    }
    if (lane == 0) weights[s] = total;
  }
  __syncthreads();
}

// The first of the entry's blocks with so many quarters in front of it.
__device__ int block_at(const DecodePlan& plan, const DecodeEntry& e, int quarters) {
  const int32_t* before = plan.before + int64_t(e.sequence) * plan.before_stride;
  if (quarters <= 0) return e.first_block;
  if (quarters >= e.chunks) return e.end_block;
  int low = e.first_block, high = e.end_block;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (before[middle] >= quarters)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

__device__ void plan_decode(const PlanArgs& a, const DecodePlan& plan) {
  __shared__ int32_t sums[kThreads / 32];
  __shared__ DecodeEntry entries[kMaxSequences];
  __shared__ int32_t weights[kMaxSequences];
  if (plan.before) weigh_contexts(a, plan, weights);
  const int s = int(threadIdx.x);
  DecodeEntry entry{};
  bool mine = false;
  if (s < a.sequences) {
    entry.sequence = s;
    entry.row = a.row_starts[s];
    mine = a.row_starts[s + 1] - entry.row == 1;
    entry.end = length_of(a, plan, s);
    entry.begin = plan.window > 0 ? max(0, entry.end - plan.window) : 0;
    const int32_t tokens = entry.end - entry.begin / kTileTokens * kTileTokens;
    if (mine) entry.chunks = max(1, plan.before ? weights[s] : (tokens + kDecodeChunk - 1) / kDecodeChunk);
    if (plan.before) {
      entry.first_block = entry.begin / a.shape.block_tokens;
      entry.end_block = (entry.end + a.shape.block_tokens - 1) / a.shape.block_tokens;
    }
  }
  const Scan places = scan(mine ? 1 : 0, sums), chunks = scan(entry.chunks, sums);
  entry.first = chunks.before;
  if (mine) entries[places.before] = plan.entries[places.before] = entry;
  __syncthreads();

  const int total = chunks.total * a.shape.kv_heads;
  int quota = max(1, (total + plan.ctas - 1) / plan.ctas);
  // Whole slots, though that may leave a tenth of the CTAs idle: quotas to the quarter were 0 to 13 % slower.
  if (plan.before) quota = (quota + kSlotUnits - 1) / kSlotUnits * kSlotUnits;
  const auto entry_at = [&](int x) {  // the last that starts at or before x
    int low = 0, high = places.total - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (entries[middle].first * a.shape.kv_heads <= x)
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
    const int inside = from - segment.e.first * a.shape.kv_heads;
    segment.head = inside / segment.e.chunks;
    segment.chunk = inside % segment.e.chunks;
    return segment;
  };
  const auto add_blocks = [&](DecodeSegment segment) {
    if (!plan.before || segment.count <= 0) return segment;
    const int end =
        segment.e.first * a.shape.kv_heads + segment.head * segment.e.chunks + segment.chunk + segment.count;
    const DecodeEntry& last = entries[entry_at(end - 1)];
    segment.begin_block = block_at(plan, segment.e, segment.chunk);
    segment.end_block = block_at(plan, last, (end - 1 - last.first * a.shape.kv_heads) % last.chunks + 1);
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
        *segment++ = add_blocks(segment_at(tail_start, to));
      }
      const DecodeSegment front = segment_at(from, to);
      const int front_start = from - front.chunk, front_end = front_start + front.e.chunks;
      const bool others_are_late = front_start / quota < cta - 1 || front_start % quota == 0;
      if (front.chunk > 0 && others_are_late && front_end < to) begin = front_end;
    }
    if (begin < end) *segment++ = add_blocks(segment_at(begin, end));
    if (from < begin) *segment++ = add_blocks(segment_at(from, begin));
    while (segment < plan.shares[cta].segments + 3) segment++->count = 0;
    plan.shares[cta].quota = quota;
  }
}

// A sequence's rows, if it has more than one.
struct Rows {
  int first = 0, count = 0;
  int cached = 0;  // by earlier steps
};

template <typename F>
__device__ void for_each_item(const Rows& rows, int tile_rows, const F& f) {
  for (int begin = 0; begin < rows.count; begin += tile_rows) f(begin, min(rows.count, begin + tile_rows));
}

// Tiles of cached tokens that rows begin .. end - 1 of a sequence see (as make_task in prefill_tasks.h).
__device__ int tiles_seen(const PlanArgs& a, const PrefillPlan& plan, const Rows& rows, int begin, int end) {
  const int position = rows.cached + begin;
  const int behind = plan.window > 0 ? max(0, position - plan.window + 1) : 0;
  const int first = behind / a.shape.block_tokens * a.shape.block_tokens;
  return max(1, (rows.cached + end - 1 - first) / a.shape.tile_tokens + 1);
}

// Heads that share a tile of rows: two, where that saves a tenth of the products, since many rows of whole
// tiles would be empty.
__device__ int heads_of_tiles(const PlanArgs& a, const PrefillPlan& plan, const Rows& rows) {
  __shared__ int32_t tiles[2];
  const int s = int(threadIdx.x);
  if (s < 2) tiles[s] = 0;
  __syncthreads();
  for (int heads = 1; heads <= 2; ++heads)
    for_each_item(rows, a.shape.tile_rows / heads, [&](int begin, int end) {
      atomicAdd(&tiles[heads - 1], tiles_seen(a, plan, rows, begin, end));
    });
  __syncthreads();
  return tiles[1] * 5ll <= tiles[0] * 9ll ? 2 : 1;
}

// Tiles that a piece has at most; 0 where no item is split. Choice i, up to i + 1 pieces of the longest item,
// is reckoned by kThreads / kMostPieces threads; then lane i of the first warp knows its cost.
__device__ int most_tiles_of_pieces(const PlanArgs& a, const PrefillPlan& plan, const Rows& rows, int heads) {
  __shared__ int32_t tiles[kMostSplitItems];
  __shared__ SplitWork work;
  __shared__ SplitOutcome outcomes[kMostPieces];
  __shared__ int32_t chosen;
  constexpr int kEach = kThreads / kMostPieces;
  const int s = int(threadIdx.x);
  if (s == 0) work = {0, 0, 0, a.shape.heads / heads, a.multiprocessors};
  if (s < kMostPieces) outcomes[s] = {0, 0};
  __syncthreads();
  for_each_item(rows, a.shape.tile_rows / heads, [&](int begin, int end) {
    const int seen = tiles_seen(a, plan, rows, begin, end), at = atomicAdd(&work.items, 1);
    if (at < kMostSplitItems) tiles[at] = seen;
    atomicAdd(&work.tiles, seen);
    atomicMax(&work.longest, seen);
  });
  __syncthreads();
  if (!may_split(work)) return 0;
  const int choice = s / kEach, most = most_tiles(work, choice + 1);
  int pieces = 0, split_pieces = 0;
  for (int i = s % kEach; i < work.items; i += kEach) {
    const int n = pieces_of(tiles[i], most);
    pieces += n;
    if (n > 1) split_pieces += n;
  }
  if (pieces > 0) atomicAdd(&outcomes[choice].pieces, pieces);
  if (split_pieces > 0) atomicAdd(&outcomes[choice].split_pieces, split_pieces);
  __syncthreads();
  if (s < 32) {
    int cost = -1;
    if (s < kMostPieces) cost = split_cost(work, most_tiles(work, s + 1), outcomes[s]);
    const int unsplit = __shfl_sync(~0u, cost, 0);
    const bool good = s > 0 && pays(cost, unsplit);
    const unsigned least = __reduce_min_sync(~0u, good ? unsigned(cost) : ~0u);
    const unsigned best = __ballot_sync(~0u, good && unsigned(cost) == least);
    if (s == 0) chosen = best ? most_tiles(work, __ffs(int(best))) : 0;
  }
  __syncthreads();
  return chosen;
}

// Items sorted by context, or by what a piece has of it, longest first, in kThreads classes; the first pieces
// of all split items come before the second, so that those who read the same keys do it at about the same time.
// Within a class the order is whatever the atomics give: it changes who computes an item, not what.
__device__ void plan_prefill(const PlanArgs& a, const PrefillPlan& plan) {
  constexpr int kClassesApart = 16;  // from one piece to the next
  __shared__ int32_t sums[kThreads / 32];
  __shared__ int32_t starts[kThreads];
  __shared__ int32_t longest, slots;
  const int s = int(threadIdx.x);
  starts[s] = 0;
  if (s == 0) longest = 1, slots = 0;
  Rows rows;
  if (s < a.sequences) {
    rows.first = a.row_starts[s];
    const int count = a.row_starts[s + 1] - rows.first;
    rows.cached = a.kv_lengths[s] - count;
    if (count > 1 && (!a.round.places || a.round.places[s].x == a.round.round)) rows.count = count;
  }
  __syncthreads();
  if (rows.count > 0) atomicMax(&longest, rows.cached + rows.count);
  const int heads = a.shape.most_heads > 1 ? heads_of_tiles(a, plan, rows) : 1;
  const int most = a.shape.tile_tokens > 0 ? most_tiles_of_pieces(a, plan, rows, heads) : 0;
  const int tile_rows = a.shape.tile_rows / heads;
  __syncthreads();
  const auto pieces_at = [&](int begin, int end) {
    return most > 0 ? pieces_of(tiles_seen(a, plan, rows, begin, end), most) : 1;
  };
  const auto class_of = [&](int end, int piece, int pieces) {
    const int context = min(longest, max(0, rows.cached + end)) / pieces;
    const int by_length = int(int64_t(longest - context) * (kThreads - 1) / longest);
    return min(kThreads - 1, by_length + piece * kClassesApart);
  };
  for_each_item(rows, tile_rows, [&](int begin, int end) {
    const int pieces = pieces_at(begin, end);
    for (int piece = 0; piece < pieces; ++piece) atomicAdd(&starts[class_of(end, piece, pieces)], 1);
  });
  __syncthreads();
  const Scan places = scan(starts[s], sums);
  __syncthreads();
  starts[s] = places.before;
  __syncthreads();
  for_each_item(rows, tile_rows, [&](int begin, int end) {
    const int pieces = pieces_at(begin, end);
    const int slot = pieces > 1 ? atomicAdd(&slots, pieces) * (a.shape.heads / heads) : 0;
    for (int piece = 0; piece < pieces; ++piece)
      plan.items[atomicAdd(&starts[class_of(end, piece, pieces)], 1)] = {
          s, rows.first + begin, rows.first + end, heads, piece, pieces, slot};
  });
  if (s == 0) *plan.count = places.total;
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ PlanArgs a) {
  let_next_start();
  wait_for_previous();
  if (int(blockIdx.x) < a.decode_plans)
    plan_decode(a, a.decode[blockIdx.x]);
  else
    plan_prefill(a, a.prefill[int(blockIdx.x) - a.decode_plans]);
}

}  // namespace

void make_plans(const Context& context, const BatchInput& batch, const PlanShape& shape,
                std::span<const DecodePlan> decode, std::span<const PrefillPlan> prefill, PrefillRound round) {
  CHECK(batch.sequences <= kMaxSequences, "more sequences in a step than attention plans for");
  CHECK(decode.size() <= size_t(kMaxWindows) && prefill.size() <= size_t(kMaxWindows));
  CHECK(prefill.empty() || (shape.tile_rows > 0 && shape.heads % shape.most_heads == 0 &&
                            (shape.most_heads == 1 || (shape.most_heads == 2 && shape.tile_tokens > 0))));
  PlanArgs a{batch.row_starts,
             batch.kv_lengths,
             {},
             batch.table_stride,
             batch.sequences,
             context.multiprocessors,
             shape,
             int(decode.size()),
             {},
             {},
             round};
  std::copy(std::begin(batch.tables), std::end(batch.tables), a.tables);
  std::copy(decode.begin(), decode.end(), a.decode);
  std::copy(prefill.begin(), prefill.end(), a.prefill);
  const size_t plans = decode.size() + prefill.size();
  // Few sequences need few threads; prefill's classes need all.
  const bool by_weight = !decode.empty() && decode[0].before;
  const int threads =
      prefill.empty() && !by_weight ? std::max(kFewThreads, (batch.sequences + 31) / 32 * 32) : kThreads;
  if (plans > 0) launch(context, plan_kernel, dim3(unsigned(plans)), dim3(unsigned(threads)), 0, a);
}

size_t most_prefill_items(int tokens, int sequences, int tile_rows, int multiprocessors) {
  return size_t(2 * tokens / tile_rows + sequences + 1 + kPieceRounds * multiprocessors);
}

}  // namespace sluice::cuda
