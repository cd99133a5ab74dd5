// Which kernel computes a product, and with which tile: a pure function of its shape, so that it can be printed
// and tested without a card. The thresholds come from the table in README.md.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace sluice::cuda {

// out[m, n] = x[m, k] * w[n, k]^T
struct LinearShape {
  int64_t m = 0, n = 0, k = 0;
  DType out = DType::bf16;
};

inline constexpr int kMaxStreamStages = 32, kStreamTile = 64;

// How the streaming kernel (stream_gemm.h) runs.
struct StreamConfig {
  int rows = 0;   // m, padded: 8, 16 or 32
  int tile = 0;   // rows of w that a thread block works on at a time, a multiple of 8, at most kStreamTile
  int depth = 0;  // columns of a stage: 64, or where k is a multiple of 64, more
  bool whole_tiles = false;  // a tile belongs to one thread block; else each block gets as many stages
  int stages = 0;            // of the ring in shared memory

  bool operator==(const StreamConfig&) const = default;
};

struct LinearChoice {
  enum class Way : uint8_t { stream, cublaslt };
  Way way = Way::cublaslt;
  StreamConfig stream;  // where way is stream

  std::string text() const;  // "stream rows 8, tile 64, …" or "cublaslt"
};

LinearChoice choose_linear(const LinearShape& shape, int multiprocessors);

// Shared memory of the streaming kernel's block.
int64_t stream_stage_bytes(const StreamConfig& c);
int64_t stream_shared_bytes(const StreamConfig& c);

}  // namespace sluice::cuda
