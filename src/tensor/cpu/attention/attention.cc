#include "tensor/cpu/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tensor/cpu/attention/key_bounds.h"

namespace sluice::cpu {
namespace {

constexpr size_t kMaxPlans = 4;  // different windows in one model
// Room for partials at most: enough for all that a step splits except on very wide machines with long contexts,
// where some tiles then stay whole.
constexpr int64_t kMaxPartialBytes = 64 << 20;
// Below this much work a thread is quicker alone than with a team to wake (about 2 µs).
constexpr int64_t kAloneCost = 100'000;

float* align(float* p) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t(63));
}

}  // namespace

// Scratch of one thread.
struct Attention::Member {
  explicit Member(int head_dim) {
    const size_t padded = size_t(padded_head(head_dim));
    memory.resize(kTileRows * (3 * padded + kChunkTokens) + kChunkTokens * padded + 4 * kTileRows + 16 * 9);
    float* p = align(memory.data());
    const auto take = [&p](size_t n) { return std::exchange(p, align(p + n)); };
    scratch = {take(kTileRows * padded), take(kTileRows * size_t(kChunkTokens))};
    next = {take(kTileRows), take(kTileRows), take(kTileRows * padded)};
    state = {take(kTileRows), take(kTileRows), take(kTileRows * padded)};
    pages = reinterpret_cast<uint16_t*>(take(kChunkTokens * padded));
  }
  std::vector<float> memory;
  TileScratch scratch;
  TileState next, state;
  // Of choose_blocks.
  std::vector<float> scores;              // [blocks]
  std::vector<int32_t> order;             // [blocks]
  std::vector<float> positive, negative;  // [heads, padded D] parts of the queries
  uint16_t* pages;  // [kChunkPages] of keys and values, where the cache has them in a small tier
  const float* q_rows[kTileRows];
  float* out_rows[kTileRows];
  int32_t positions[kTileRows];
  int32_t begin[kTileRows], end[kTileRows];
};

Attention::Attention(Team& team, Isa isa)
    : team_(team), kernels_(chunk_kernels(isa)), tiers_(tier_kernels(isa)), plans_(kMaxPlans) {}
Attention::~Attention() = default;

void Attention::reserve(int max_tokens, int max_heads, int head_dim, int max_context) {
  head_dim_ = head_dim;
  const size_t padded = size_t(padded_head(head_dim));
  members_.clear();
  for (int i = 0; i < team_.size(); ++i) members_.push_back(std::make_unique<Member>(head_dim));
  // A tile holds at least one row, so there are never more tiles than rows times heads.
  max_tiles_ = max_tokens * max_heads;
  chunks_left_ = std::make_unique<std::atomic<int32_t>[]>(size_t(max_tiles_));
  const int64_t chunks = max_context / kChunkTokens + 1;
  const int64_t useful = int64_t(team_.size()) * 4 * kTileRows * chunks;  // split tiles are larger than a piece
  max_partial_rows_ = std::min<int64_t>(useful, kMaxPartialBytes / int64_t(padded * sizeof(float)));
  if (team_.size() == 1) max_partial_rows_ = 0;
  partial_acc_ = ZeroedArray<float>(size_t(max_partial_rows_) * padded);
  partial_max_ = ZeroedArray<float>(size_t(max_partial_rows_));
  partial_sum_ = ZeroedArray<float>(size_t(max_partial_rows_));
  for (CachedPlan& p : plans_) {
    p.plan.tiles.reserve(size_t(max_tiles_));
    p.plan.items.reserve(size_t(max_tiles_ + max_partial_rows_));
  }
  begin_step();
}

void Attention::reserve_sparse(int max_sequences, int max_heads, int max_context, const KvGeometry& g) {
  chosen_stride_ = size_t(max_context / g.block_tokens + 1);
  chosen_ = ZeroedArray<int32_t>(size_t(max_sequences) * size_t(g.kv_heads) * chosen_stride_);
  whole_blocks_.reserve(size_t(max_tiles_));  // fewer than the step's tokens
  for (auto& member : members_) {
    member->scores.resize(chosen_stride_);
    member->order.resize(chosen_stride_);
    member->positive.resize(size_t(max_heads) * size_t(padded_head(g.head_dim)));
    member->negative.resize(member->positive.size());
  }
}

void Attention::begin_step() { plans_used_ = 0; }

const Plan& Attention::plan_for(const AttentionArgs& a) {
  const int kv_heads = a.geometry.kv_heads;
  for (size_t i = 0; i < plans_used_; ++i) {
    const CachedPlan& p = plans_[i];
    if (p.window == a.window && p.heads == a.heads && p.kv_heads == kv_heads) return p.plan;
  }
  if (plans_used_ == plans_.size()) plans_used_ = 0;
  CachedPlan& p = plans_[plans_used_++];
  p.window = a.window;
  p.heads = a.heads;
  p.kv_heads = kv_heads;
  plan_attention({a.batch.sequences, a.batch.row_starts, a.batch.positions, a.heads / kv_heads, kv_heads,
                  a.window, team_.size(), max_partial_rows_, a.geometry.sparse, a.geometry.block_tokens},
                 p.plan);
  CHECK(p.plan.tiles.size() <= size_t(max_tiles_), "more rows or heads than reserved");
  return p.plan;
}

void Attention::run(const AttentionArgs& a) {
  CHECK(a.geometry.head_dim <= head_dim_ && a.heads % a.geometry.kv_heads == 0);
  const Plan& plan = plan_for(a);
  if (a.geometry.sparse.on() && a.window == 0) {
    bound_blocks(a);
    if (plan.sparse)
      team_.run_tasks(int(plan.tiles.size()), [&](int i, int member) {
        const Tile& tile = plan.tiles[size_t(i)];
        if (tile.sparse && tile.row_begin == 0) choose_blocks(a, tile, *members_[size_t(member)]);
      });
  }
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    const Tile& t = plan.tiles[i];
    if (t.first_partial >= 0) chunks_left_[i].store(t.chunk_end - t.chunk_begin, std::memory_order_relaxed);
  }
  const int items = int(plan.items.size());
  if (plan.cost * a.geometry.head_dim < kAloneCost) {
    for (int i = 0; i < items; ++i) run_item(a, plan, i, *members_[0]);
  } else {
    team_.run_tasks(items, [&](int item, int member) { run_item(a, plan, item, *members_[size_t(member)]); });
  }
}

void Attention::run_item(const AttentionArgs& a, const Plan& plan, int index, Member& m) {
  const Item& item = plan.items[size_t(index)];
  const Tile& tile = plan.tiles[size_t(item.tile)];
  if (tile.first_partial < 0) return run_whole(a, tile, item, m);
  run_split(a, tile, item, m);
  if (chunks_left_[item.tile].fetch_sub(1, std::memory_order_acq_rel) == 1) join(a, tile, m);
}

// Pointers to the tile's rows of q and out, and their positions.
void Attention::gather_rows(const AttentionArgs& a, const Tile& tile, Member& m) {
  const int group = a.heads / a.geometry.kv_heads;
  const int row0 = a.batch.row_starts[tile.sequence];
  for (int i = 0; i < tile.rows; ++i) {
    const int row = row0 + (tile.row_begin + i) / group;
    const int head = tile.kv_head * group + (tile.row_begin + i) % group;
    m.q_rows[i] = a.q.row<float>(row) + int64_t(head) * a.geometry.head_dim;
    m.out_rows[i] = a.out.row<float>(row) + int64_t(head) * a.geometry.head_dim;
    m.positions[i] = a.batch.positions[row];
    if (tile.sparse)
      m.positions[i] = a.geometry.sparse.kept_tokens(m.positions[i] + 1, a.geometry.block_tokens) - 1;
    // Rows lie a stride apart and were last written by other cores: fetch them all at once, not one after the
    // other.
    for (int d = 0; d < a.geometry.head_dim; d += 16) {
      __builtin_prefetch(m.q_rows[i] + d, 0);
      __builtin_prefetch(m.out_rows[i] + d, 1);
    }
  }
}

void Attention::run_chunk(const AttentionArgs& a, const Tile& tile, int chunk, Member& m,
                          const TileState& out) {
  const int first_token = chunk * kChunkTokens;
  int begin = kChunkTokens, end = 0;  // tokens of this chunk that any row sees
  for (int i = 0; i < tile.rows; ++i) {
    m.begin[i] = std::max(0, first_seen(m.positions[i], a.window) - first_token);
    m.end[i] = std::min(kChunkTokens, m.positions[i] + 1 - first_token);
    if (m.begin[i] >= m.end[i]) continue;
    begin = std::min(begin, m.begin[i]);
    end = std::max(end, m.end[i]);
  }
  ChunkArgs c{};
  c.scratch = m.scratch;
  c.rows = tile.rows;
  c.head_dim = a.geometry.head_dim;
  c.softcap = a.softcap;
  c.page_begin = begin / kPageTokens;
  c.page_end = std::max(c.page_begin, (end + kPageTokens - 1) / kPageTokens);
  c.begin = m.begin;
  c.end = m.end;
  c.out = out;
  const PageLayout layout(a.geometry);
  const int32_t* table = a.batch.tables[a.kv.group] + int64_t(tile.sequence) * a.batch.table_stride;
  for (int p = c.page_begin; p < c.page_end; ++p) {
    const int page = chunk * kChunkPages + p;
    const int index = page / layout.strip.pages;
    const KvRef block = table[tile.sparse ? chosen(a, tile)[index] : index];
    CHECK(block >= 0, "attention reached a block behind the window");
    const int inside = page % layout.strip.pages;
    uint16_t* keys = m.pages + size_t(p) * layout.strip.page_values() * 2;
    if (const KvTier tier = kv_tier(block); tier == KvTier::full)
      keys = layout.keys(a.kv, block, inside, tile.kv_head);
    else
      (tier == KvTier::int8 ? tiers_.decode_int8 : tiers_.decode_int4)(
          layout.strip, layout.strip_of(a.kv, block, tile.kv_head), inside, keys, layout.values(keys));
    c.keys[p] = keys;
    c.values[p] = layout.values(keys);
  }
  kernels_.chunk(c);
}

void Attention::run_whole(const AttentionArgs& a, const Tile& tile, const Item& item, Member& m) {
  const int head_dim = a.geometry.head_dim;
  gather_rows(a, tile, m);
  kernels_.pack_q(m.q_rows, tile.rows, head_dim, a.scale, m.scratch.q);
  run_chunk(a, tile, item.chunk_begin, m, m.state);
  for (int c = item.chunk_begin + 1; c < item.chunk_end; ++c) {
    run_chunk(a, tile, c, m, m.next);
    kernels_.fold(m.state, m.next, tile.rows, head_dim);
  }
  kernels_.finish(m.state, tile.rows, head_dim, m.out_rows);
}

TileState Attention::partial(const Tile& tile, int chunk) {
  const size_t row = size_t(tile.first_partial) + size_t(chunk - tile.chunk_begin) * size_t(tile.rows);
  return {partial_max_.data() + row, partial_sum_.data() + row,
          partial_acc_.data() + row * size_t(padded_head(head_dim_))};
}

void Attention::run_split(const AttentionArgs& a, const Tile& tile, const Item& item, Member& m) {
  gather_rows(a, tile, m);
  kernels_.pack_q(m.q_rows, tile.rows, a.geometry.head_dim, a.scale, m.scratch.q);
  for (int c = item.chunk_begin; c < item.chunk_end; ++c) run_chunk(a, tile, c, m, partial(tile, c));
}

void Attention::join(const AttentionArgs& a, const Tile& tile, Member& m) {
  const int head_dim = a.geometry.head_dim;
  gather_rows(a, tile, m);
  const TileState state = partial(tile, tile.chunk_begin);
  for (int c = tile.chunk_begin + 1; c < tile.chunk_end; ++c) {
    kernels_.fold(state, partial(tile, c), tile.rows, head_dim);
  }
  kernels_.finish(state, tile.rows, head_dim, m.out_rows);
}

// The lowest and highest key per channel of each block that became whole in this step.
void Attention::bound_blocks(const AttentionArgs& a) {
  const PageLayout layout(a.geometry);
  const int block_tokens = a.geometry.block_tokens, kv_heads = a.geometry.kv_heads;
  whole_blocks_.clear();
  for (int s = 0; s < a.batch.sequences; ++s) {
    const int rows = a.batch.row_starts[s + 1] - a.batch.row_starts[s];
    if (rows == 0 || a.batch.kv_lengths[s] == 0) continue;
    const int first = a.batch.positions[a.batch.row_starts[s]];
    for (int b = first / block_tokens; b < (first + rows) / block_tokens; ++b) whole_blocks_.push_back({s, b});
  }
  if (whole_blocks_.empty()) return;
  team_.run_tasks(int(whole_blocks_.size()) * kv_heads, [&](int task, int) {
    const auto [s, index] = whole_blocks_[size_t(task / kv_heads)];
    const int head = task % kv_heads;
    const KvRef block = a.batch.tables[a.kv.group][int64_t(s) * a.batch.table_stride + index];
    CHECK(kv_tier(block) == KvTier::full, "rows are stored in full blocks");
    const uint16_t* pages[kChunkPages];
    CHECK(layout.strip.pages <= kChunkPages);
    for (int p = 0; p < layout.strip.pages; ++p) pages[p] = layout.keys(a.kv, block, p, head);
    bound_keys(layout.strip, pages, layout.bounds(a.kv, block, head));
  });
}

void Attention::choose_blocks(const AttentionArgs& a, const Tile& tile, Member& m) {
  const PageLayout layout(a.geometry);
  const SparseDecode& sparse = a.geometry.sparse;
  const int group = a.heads / a.geometry.kv_heads, row = a.batch.row_starts[tile.sequence];
  const int length = a.batch.positions[row] + 1, block_tokens = a.geometry.block_tokens;
  const int blocks = (length + block_tokens - 1) / block_tokens;
  const int recent = SparseDecode::first_recent(length, block_tokens), kept = sparse.kept(length, block_tokens);
  if (kept == blocks) {
    std::iota(chosen(a, tile), chosen(a, tile) + blocks, 0);
    return;
  }
  const int candidates = recent - 1, wanted = kept - (blocks - recent) - 1;
  const float* q = a.q.row<float>(row) + int64_t(tile.kv_head) * group * a.geometry.head_dim;
  split_queries(q, group, layout.strip, m.positive.data(), m.negative.data());
  const int32_t* table = a.batch.tables[a.kv.group] + int64_t(tile.sequence) * a.batch.table_stride;
  for (int b = 1; b <= candidates; ++b) {
    m.scores[size_t(b)] = bounded_score(layout.bounds(a.kv, table[b], tile.kv_head), group, layout.strip,
                                        m.positive.data(), m.negative.data());
    m.order[size_t(b) - 1] = b;
  }
  const auto first = m.order.begin();
  std::nth_element(first, first + wanted, first + candidates, [&](int32_t x, int32_t y) {
    const float of_x = m.scores[size_t(x)], of_y = m.scores[size_t(y)];
    return of_x != of_y ? of_x > of_y : x > y;
  });
  std::sort(first, first + wanted);
  int32_t* out = chosen(a, tile);
  *out++ = 0;
  out = std::copy(first, first + wanted, out);
  for (int b = recent; b < blocks; ++b) *out++ = b;
}

void Attention::move_blocks(const MoveBlocksArgs& a) {
  const PageLayout layout(a.geometry);
  const int strips = a.geometry.layers_per_group * a.geometry.kv_heads;
  for (int i = 0; i < a.batch.move_count; ++i)
    team_.run_tasks(strips, [&](int strip, int member) {
      move_strip(a, layout, a.batch.moves[i], strip, *members_[size_t(member)]);
    });
}

// One head of one layer.
void Attention::move_strip(const MoveBlocksArgs& a, const PageLayout& layout, const KvMove& move, int strip,
                           Member& m) {
  const KvLayer kv{a.pool, a.block_bytes, strip / layout.kv_heads, 0};
  const int head = strip % layout.kv_heads;
  const StripShape& shape = layout.strip;
  const KvTier from = kv_tier(move.from), to = kv_tier(move.to);
  if (layout.bounded)
    std::memcpy(layout.bounds(kv, move.to, head), layout.bounds(kv, move.from, head), layout.bounds_bytes());
  if (from == to && from != KvTier::full) {
    std::memcpy(layout.strip_of(kv, move.to, head), layout.strip_of(kv, move.from, head),
                layout.strip_bytes(to));
    return;
  }
  const uint16_t *keys[kChunkPages], *values[kChunkPages];
  for (int page = 0; page < shape.pages; ++page) {
    uint16_t* target = to == KvTier::full ? layout.keys(kv, move.to, page, head)
                                          : m.pages + size_t(page) * shape.page_values() * 2;
    const uint16_t* source = target;
    if (from == KvTier::full)
      source = layout.keys(kv, move.from, page, head);
    else
      (from == KvTier::int8 ? tiers_.decode_int8 : tiers_.decode_int4)(
          shape, layout.strip_of(kv, move.from, head), page, target, layout.values(target));
    if (source != target && to == KvTier::full)
      std::memcpy(target, source, shape.page_values() * 2 * sizeof(uint16_t));
    keys[page] = source;
    values[page] = source + shape.page_values();
  }
  if (to != KvTier::full)
    (to == KvTier::int8 ? tiers_.encode_int8 : tiers_.encode_int4)(shape, keys, values,
                                                                   layout.strip_of(kv, move.to, head));
}

}  // namespace sluice::cpu
