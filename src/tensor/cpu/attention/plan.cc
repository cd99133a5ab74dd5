#include "tensor/cpu/attention/plan.h"

#include <algorithm>

#include "tensor/cpu/attention/chunk_kernel.h"

namespace sluice::cpu {
namespace {

// Loading and converting a token's key and value costs about as much as kLoadRows rows' products with them.
constexpr int kLoadRows = 6;
// A thread's share is cut into this many pieces at least, so that threads end together.
constexpr int kPiecesPerThread = 4;

int64_t tile_cost(const Tile& t) {
  return int64_t(t.chunk_end - t.chunk_begin) * kChunkTokens * (t.rows + kLoadRows);
}

void add_tiles(const PlanInput& in, int s, Plan& out) {
  const int tokens = in.row_starts[s + 1] - in.row_starts[s];
  if (tokens == 0) return;
  int first_position = in.positions[in.row_starts[s]];
  const bool sparse = in.sparse.applies(tokens, first_position + 1, in.window);
  if (sparse) first_position = in.sparse.kept_tokens(first_position + 1, in.block_tokens) - 1;
  const int rows = tokens * in.group;
  const int tile_rows = in.group <= kTileRows ? kTileRows / in.group * in.group : kTileRows;
  for (int g = 0; g < in.kv_heads; ++g) {
    // From the back: later rows see more tokens, and long work should start early.
    for (int begin = (rows - 1) / tile_rows * tile_rows; begin >= 0; begin -= tile_rows) {
      const int count = std::min(tile_rows, rows - begin);
      const int first = first_seen(first_position + begin / in.group, in.window);
      const int last = first_position + (begin + count - 1) / in.group;
      out.tiles.push_back({s, g, begin, count, first / kChunkTokens, last / kChunkTokens + 1, -1, sparse});
    }
  }
}

}  // namespace

void plan_attention(const PlanInput& in, Plan& out) {
  out.tiles.clear();
  out.items.clear();
  out.cost = 0;
  out.sparse = false;
  for (int s = 0; s < in.sequences; ++s) add_tiles(in, s, out);
  for (const Tile& t : out.tiles) out.cost += tile_cost(t), out.sparse |= t.sparse;
  const int64_t share = out.cost / (int64_t(in.threads) * kPiecesPerThread);
  int64_t partial_rows = 0;
  for (size_t i = 0; i < out.tiles.size(); ++i) {
    Tile& t = out.tiles[i];
    const int chunks = t.chunk_end - t.chunk_begin;
    const int64_t needed = int64_t(chunks) * t.rows;
    const bool split =
        in.threads > 1 && chunks > 1 && tile_cost(t) > share && partial_rows + needed <= in.max_partial_rows;
    if (!split) {
      out.items.push_back({int32_t(i), t.chunk_begin, t.chunk_end});
      continue;
    }
    t.first_partial = int32_t(partial_rows);
    partial_rows += needed;
    for (int c = t.chunk_begin; c < t.chunk_end; ++c) out.items.push_back({int32_t(i), c, c + 1});
  }
}

}  // namespace sluice::cpu
