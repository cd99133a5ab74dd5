// Attention of a tile of query rows over one chunk of cached tokens: the inner part of attention.cc, one table
// per instruction set.
//
// Numbers: a row's partial result depends on that row's query, its token range and the cached tokens alone.
// Each score is one chain of products over d, each output element one chain over the tokens of the chunk,
// whatever the number of rows beside it; chunks begin at fixed positions. That is what makes a row's result
// independent of its batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/cpu/isa.h"

namespace sluice::cpu {

inline constexpr int kPageTokens =
    16;  // tokens whose keys lie side by side: K is [D][16], V [16][padded D], both f16
inline constexpr int kChunkTokens = 128;  // tokens of one softmax partial; a chunk begins at a multiple of it
inline constexpr int kChunkPages = kChunkTokens / kPageTokens;
// Rows (query tokens times heads of one kv head) that share each load of K and V. 48 rows' scores are 24 KB.
inline constexpr int kTileRows = 48;

constexpr int padded_head(int head_dim) { return (head_dim + 15) / 16 * 16; }

// What one tile needs of scratch while it is worked on; floats, 64-byte aligned.
struct TileScratch {
  float* q;       // [kTileRows * D] packed
  float* scores;  // [kTileRows][kChunkTokens]
};

// Softmax state of a tile's rows: the sum over tokens of exp(score - max) * v, not divided by `sum` yet.
struct TileState {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* acc;  // [rows][padded D]
};

struct ChunkArgs {
  TileScratch scratch;  // q packed by pack_q
  int rows;
  int head_dim;
  float softcap;                      // 0: none
  const uint16_t* keys[kChunkPages];  // pages of this chunk; only [page_begin, page_end) are read
  const uint16_t* values[kChunkPages];
  int page_begin, page_end;
  const int32_t* begin;  // [rows] tokens that a row sees, counted from the chunk's first; begin >= end: none
  const int32_t* end;    // [rows]
  TileState out;         // overwritten; sum 0 and max -inf for a row that sees nothing
};

struct ChunkKernels {
  // Rows of q, already gathered as pointers, times `scale` into the order that `chunk` reads.
  void (*pack_q)(const float* const* q_rows, int rows, int head_dim, float scale, float* packed);
  void (*chunk)(const ChunkArgs& a);
  // state = state joined with `next`, the chunk after it. The only way partials are ever joined.
  void (*fold)(const TileState& state, const TileState& next, int rows, int head_dim);
  // out_rows[r][0, D) = acc / sum.
  void (*finish)(const TileState& state, int rows, int head_dim, float* const* out_rows);
};

const ChunkKernels& chunk_kernels(Isa isa);

extern const ChunkKernels kChunkKernelsPlain;
extern const ChunkKernels kChunkKernelsAvx2;
extern const ChunkKernels kChunkKernelsAvx512;

}  // namespace sluice::cpu
