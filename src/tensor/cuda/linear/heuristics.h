// Which kernel computes a product, and with which tile: a pure function of its shape, so that it can be printed
// and tested without a card. The thresholds come from the table in README.md.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/cuda/rows/quantized_rows.h"
#include "tensor/dtype.h"

namespace sluice::cuda {

// out[m, n] = x[m, k] * w[n, k]^T
struct LinearShape {
  int64_t m = 0, n = 0, k = 0;
  DType out = DType::bf16;
  Factors factors = Factors::bf16;
};

inline constexpr int kMaxStreamStages = 32;
// Rows of w that a thread block of the streaming kernel works on at most, by the padded rows of x; and sums of
// the largest such tile.
constexpr int stream_tile(int rows) { return rows <= 32 ? 64 : 128; }
inline constexpr int kMostStreamSums = 128 * 128;

// How the streaming kernel (stream_gemm.h) runs.
struct StreamConfig {
  int rows = 0;  // m, padded: 8, 16 or 32; of eight-bit factors 64 or 128 too
  int tile = 0;  // rows of w that a thread block works on at a time, a multiple of 8, at most stream_tile(rows)
  int depth = 0;             // columns of a stage: 64 (eight-bit: 128), or where k is a multiple of that, more
  bool whole_tiles = false;  // a tile belongs to one thread block; else each block gets as many stages
  int stages = 0;            // of the ring in shared memory
  int early_stages = kMaxStreamStages;  // of these, asked for before x is there
  Factors factors = Factors::bf16;

  bool operator==(const StreamConfig&) const = default;
};

struct LinearChoice {
  enum class Way : uint8_t {
    stream,
    cublaslt,
    cublaslt_unscaled  // of fp8: float32 sums, scaled by a kernel behind (finish.h)
  };
  Way way = Way::cublaslt;
  StreamConfig stream;  // where way is stream

  std::string text() const;  // "stream rows 8, tile 64, …" or "cublaslt"
};

// Sums of four bytes go through memory: so many rows of them at a time.
inline constexpr int64_t kMostUnscaledRows = 1024;

LinearChoice choose_linear(const LinearShape& shape, int multiprocessors);
// How the streaming kernel runs up to 128 rows (bf16: 32), with tiles that belong to one thread block or not.
StreamConfig stream_config(const LinearShape& shape, bool whole_tiles, int multiprocessors);

// Shared memory of the streaming kernel's block.
int64_t stream_stage_bytes(const StreamConfig& c);
int64_t stream_shared_bytes(const StreamConfig& c);

}  // namespace sluice::cuda
