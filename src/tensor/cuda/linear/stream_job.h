// What the streaming product's kernel works on (stream_kernel.h): what it is compiled for, its job, which part
// of it a thread block has, and where in shared memory things lie.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/linear/heuristics.h"

namespace sluice::cuda {
namespace {

constexpr int kRowBytes = 128;               // of a box: the width of the swizzle
constexpr int kBoxPairs = kRowBytes / 2;     // tensor maps count in pairs of bytes, whatever the factors
constexpr int kMaxTiles = 1 << 16;           // of a product
constexpr int kMaxSharedBytes = 227 * 1024;  // of a block of sm_90

// What one kernel is compiled for: the factors, x's rows, and boxes per stage.
template <Factors kFactors_, int kRows_, int kBoxes_>
struct Shape {
  static constexpr Factors kFactors = kFactors_;
  static constexpr int kRows = kRows_, kBoxes = kBoxes_;
  static constexpr int kBox = kRowBytes / factor_bytes(kFactors);  // columns
  static constexpr int kDepth = kBox * kBoxes;
  static constexpr int kInputBoxBytes = kRows * kRowBytes;
  static constexpr int kSums = kRows / 2;  // of a thread
  // Warpgroups that multiply, 64 rows of w each.
  static constexpr int kGroups = stream_tile(kRows) / 64;
  static constexpr int kTile = 64 * kGroups, kConsumers = 128 * kGroups;
  // Sums of 128 rows, and those of a box beside: more registers than a third of a block's. The thread that
  // loads then brings a whole warpgroup, which gives its own away.
  static constexpr bool kMovesRegisters = kRows == 128;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? 128 : 32);
  static constexpr bool kBlocks = kFactors == Factors::fp8_blocks, kFp8 = kBlocks || kFactors == Factors::fp8;
  // The tensor cores keep sums of fp8 to 14 bits: those of so many stages are added up in float32.
  static constexpr int kStagesTogether = kBlocks ? 1 : 4;
  // Sums kept apart, by columns: products into the same registers wait for one another, about 60 cycles each,
  // and with few rows that is longer than the memory takes to bring the next stage. Of fp8 a box has its own:
  // in blocks it has its own scales.
  static constexpr int kChains = kFp8 ? kBoxes : kRows <= 16 ? 4 : kRows <= 32 ? 2 : 1;
  // Scales of x's rows that a thread has to do with; where they are few it keeps them.
  static constexpr int kInputScales = kRows / 4;
  static constexpr bool kKeepsInputScales = kRows <= 32;
  using Sum = std::conditional_t<kFactors == Factors::int8, int32_t, float>;
};

struct Job {
  void* out;
  int64_t out_stride;
  const float* bias;  // or null
  // Of eight-bit factors: [n] and [m], or of blocks [n / 128, w_scale_stride] and [boxes, x_scale_stride].
  const float *w_scales, *x_scales;
  int w_scale_stride, x_scale_stride;
  float* parts;     // [thread block][2][tile's sums]
  int* arrived;     // [tile], zero before and after
  int m, n, boxes;  // boxes: of a row
  int tile;         // rows of w, at most S::kTile; what lies behind them is multiplied as well, and dropped
  int tile_units;   // units of a tile
  int units;        // of the product
  int share_step;   // 1: a tile may be shared by blocks; tile_units: never
  int shares;       // units / share_step; times the blocks below 2^31
  int stages, early_stages;  // early: asked for before x may be
  bool f32;
};

// Which units a block owns.
struct Shares {
  const Job& job;

  // 32 bits: every block begins with it, and a division of 64 bits takes 0.1 us.
  __device__ int begin(int block) const {
    return int(unsigned(block * job.shares) / gridDim.x) * job.share_step;
  }
  __device__ int owner(int unit) const {  // where share_step is 1
    return int(((unit + 1) * int64_t(gridDim.x) - 1) / job.units);
  }
};

struct Barriers {
  uint64_t full[kMaxStreamStages];
  uint64_t empty[kMaxStreamStages];
  bool votes[2];
};

// The stages in shared memory: per box of columns the tile's rows, then per box x's rows.
template <typename S>
struct Ring {
  uint8_t* stages;
  Barriers* barriers;
  int tile;

  __device__ int weight_box_bytes() const { return tile * kRowBytes; }
  __device__ int stage_bytes() const { return S::kBoxes * (weight_box_bytes() + S::kInputBoxBytes); }
  __device__ uint8_t* weights(int slot, int box) const {
    return stages + slot * stage_bytes() + box * weight_box_bytes();
  }
  __device__ uint8_t* inputs(int slot, int box) const {
    return stages + slot * stage_bytes() + S::kBoxes * weight_box_bytes() + box * S::kInputBoxBytes;
  }
};

// Where in the ring a unit goes, counted from the block's first.
struct Place {
  int slot = 0;
  uint32_t round = 0;  // parity of how often the ring was gone round
  __device__ void next(int stages) {
    if (++slot == stages) slot = 0, round ^= 1;
  }
};

}  // namespace
}  // namespace sluice::cuda
