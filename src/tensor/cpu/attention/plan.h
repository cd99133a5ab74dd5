// How one step's attention is cut into pieces of work. A pure function of the batch's shape; attention.cc runs
// it for every layer.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/sparse_decode.h"

namespace sluice::cpu {

// Query rows of one sequence that read one kv head. A row is (query token, head of the group): row r of a
// sequence's kv head is its token r / group at head r % group of the group.
struct Tile {
  int32_t sequence;
  int32_t kv_head;
  int32_t row_begin, rows;
  int32_t chunk_begin, chunk_end;  // chunks that any of its rows sees
  int32_t first_partial;  // index of its first partial row, where the chunks are worked on apart; else -1
  bool sparse = false;    // one token's rows, whose chunks are of the blocks chosen for it, put together
};

struct Item {
  int32_t tile;
  int32_t chunk_begin, chunk_end;
};

struct PlanInput {
  int sequences;
  const int32_t* row_starts;  // [S + 1]
  const int32_t* positions;   // [T]
  int group;                  // heads per kv head
  int kv_heads;
  int window;  // 0: none
  int threads;
  int64_t max_partial_rows;  // room for partial results
  SparseDecode sparse{};
  int block_tokens = 0;  // needed with sparse
};

struct Plan {
  std::vector<Tile> tiles;
  std::vector<Item> items;  // in the order to start them: what takes long first
  int64_t cost = 0;         // token-rows, about
  bool sparse = false;      // any tile is
};

// Tokens a row at `position` sees: [first_seen, position].
inline int first_seen(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Overwrites `out`, whose capacity is kept: no allocation once it has grown.
void plan_attention(const PlanInput& in, Plan& out);

}  // namespace sluice::cpu
