// How a product with 4-bit weights is computed: a pure function of its shape, tested without a card.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/cuda/linear/int4_layout.h"

namespace sluice::cuda {

// out[m, n] = x[m, k] * w[n, k]^T
struct Int4Shape {
  int64_t m = 0, n = 0, k = 0;
  int group = 0;  // of the layout: 32, 64, 128
};

inline constexpr int kMostInt4Stages = 8, kInt4BarrierBytes = 16 * kMostInt4Stages * 8;

// How the streaming kernel (int4_stream.h) runs.
struct Int4StreamConfig {
  int rows = 0;          // m, padded: 8 or 16
  int panels = 0;        // of 16 rows of w that a warp works on at a time: 2 to 4
  int warp_rows = 0;     // warps side by side along n
  int slices = 0;        // warps that share out k, for each of these
  int cluster = 0;       // blocks that share out k: 1, 2 or 4
  int stage_blocks = 0;  // of a panel, in one stage
  int stages = 0;        // of each warp's ring

  int warps() const { return warp_rows * slices; }
  int tile_panels() const { return panels * warp_rows; }  // of a cluster
  bool operator==(const Int4StreamConfig&) const = default;
  std::string text() const;
};

inline constexpr int kInt4GemmTileRows = 128, kInt4GemmDepth = 128, kMostInt4GemmStages = 16;

// How the kernel for many rows (int4_gemm.h) runs.
struct Int4GemmConfig {
  int columns = 0;         // rows of x in a tile
  int cluster = 0;         // blocks that share out k
  bool odd_zeros = false;  // zeros may be any numbers

  bool operator==(const Int4GemmConfig&) const = default;
  std::string text() const;
};

// Warps of a block of the streaming kernel, at most: what its registers allow.
constexpr int int4_most_warps(int rows, int panels) { return rows / 8 * panels <= 4 ? 16 : 8; }

// Shared memory of the streaming kernel's block.
// Clusters of its grid; each takes every so manieth tile.
int64_t int4_stream_clusters(const Int4StreamConfig& c, const Int4Shape& s, int multiprocessors);
int64_t int4_part_bytes(const Int4StreamConfig& c);  // a tile's sums, of all slices
int64_t int4_stage_bytes(const Int4StreamConfig& c, const Int4Shape& s);
int64_t int4_shared_bytes(const Int4StreamConfig& c, const Int4Shape& s, int multiprocessors);
// With as many stages as fit in so much shared memory; 0 stages where not even
// one does.
Int4StreamConfig with_stages(Int4StreamConfig c, const Int4Shape& s, int multiprocessors, int64_t shared_bytes);

// For at most 16 rows. stages 0: the streaming kernel cannot (x does not fit).
Int4StreamConfig choose_int4_stream(const Int4Shape& shape, int multiprocessors);

// Zeros that are no integers: groups of 32 alone.
Int4GemmConfig choose_int4_gemm(const Int4Shape& shape, bool integer_zeros, int multiprocessors);

// Up to so many rows 4-bit weights are no slower than a copy as bf16.
inline constexpr int64_t kMostRowsBesideCopy = 128;

struct Int4Choice {
  enum class Way : uint8_t { stream, gemm, cublaslt };
  Way way = Way::cublaslt;
  Int4StreamConfig stream;  // where way is stream
  Int4GemmConfig gemm;      // where way is gemm

  std::string text() const;  // "stream: …", "gemm: …" or "as bf16 by cublaslt"
};

// integer_zeros: whether all zeros are integers, as int4_gemm.h wants them. copied: the weight is there as bf16
// too, and cublaslt takes that.
Int4Choice choose_int4(const Int4Shape& shape, bool integer_zeros, bool copied, int multiprocessors);

}  // namespace sluice::cuda
