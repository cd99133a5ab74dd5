#include "tensor/cuda/linear/int4_gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <span>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/device/tensor_map.h"
#include "tensor/cuda/linear/int4_decode.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/cluster.h"
#include "tensor/cuda/ptx/mma.h"
#include "tensor/cuda/ptx/wgmma_attention.h"
#include "tensor/cuda/ptx/wgmma_from_registers.h"

namespace sluice::cuda {
namespace {

constexpr int kGroups = 2;  // warpgroups that multiply
constexpr int kConsumers = kGroups * 128, kThreads = kConsumers + 128;
constexpr int kTileRows = kInt4GemmTileRows, kTilePanels = kTileRows / kPanelRows;
constexpr int kDepth = kInt4GemmDepth;  // columns of a stage
constexpr int kBoxBytes = 128;          // of a row of x: 64 columns, the width of the swizzle
constexpr int kMaxSharedBytes = 227 * 1024;

// What one kernel is compiled for: x's rows in a tile, steps of 16 columns in a group, and whether zeros may be
// any numbers.
template <int kN_, int kSteps_, bool kOdd_>
struct Shape {
  static constexpr bool kOdd = kOdd_;
  static constexpr int kN = kN_, kSteps = kSteps_, kGroup = kSteps * 16;
  static constexpr Int4Layout kLayout{0, 0, kGroup};
  static constexpr int kBlocks = kDepth / kLayout.block_cols();  // of a panel, in a stage
  static constexpr int kInputBytes = kDepth / 64 * kN * kBoxBytes;
  static constexpr int kWeightBytes = kTilePanels * kBlocks * kLayout.block_bytes();
  static constexpr int kStageBytes = (kInputBytes + kWeightBytes + 1023) / 1024 * 1024;
  // Steps whose operands are decoded together: two such portions take turns in the registers.
  static constexpr int kPortionSteps = std::min(kSteps, 4), kPortions = kDepth / 16 / kPortionSteps;
};

struct Job {
  void* out;
  int64_t out_stride;
  const float* bias;  // or null
  int m, n;
  int row_tiles, column_tiles;
  int depths;   // stages along k
  int cluster;  // blocks that share out k
  int stages;
  bool f32, pairs;  // of bf16 results may be stored together
};

struct Barriers {
  uint64_t full[kMostInt4GemmStages];
  uint64_t empty[kMostInt4GemmStages];
};

struct Place {
  int slot = 0;
  uint32_t round = 0;
  __device__ void next(int stages) {
    if (++slot == stages) slot = 0, round ^= 1;
  }
};

// What all warps of a block agree on.
struct Work {
  const Job& job;
  const int rank, first, step, begin, end;  // block of the cluster; tiles; its stages along k

  __device__ explicit Work(const Job& j)
      : job(j),
        rank(int(blockIdx.x) % j.cluster),
        first(int(blockIdx.x) / j.cluster),
        step(int(gridDim.x) / j.cluster),
        begin(j.depths * rank / j.cluster),
        end(j.depths * (rank + 1) / j.cluster) {}
  __device__ int tiles() const { return job.row_tiles * job.column_tiles; }
  // Neighbours share rows of w, which come from far; x is in the L2.
  __device__ int row_tile(int tile) const { return tile / job.column_tiles; }
  __device__ int column_tile(int tile) const { return tile % job.column_tiles; }
};

// One thread. Weights may be read before the kernel before is done, x may not.
template <typename S>
__device__ void produce(const CUtensorMap* weights, const CUtensorMap* inputs, const Work& work, uint8_t* ring,
                        Barriers* barriers) {
  const auto load_weights = [&](int slot, int tile, int depth) {
    ptx::barrier_expect_bytes(&barriers->full[slot], S::kInputBytes + S::kWeightBytes);
    ptx::copy_boxes(ring + slot * S::kStageBytes + S::kInputBytes, weights, &barriers->full[slot],
                    work.row_tile(tile) * kTilePanels, depth * S::kBlocks);
  };
  const auto load_inputs = [&](int slot, int tile, int depth) {
    ptx::copy_boxes(ring + slot * S::kStageBytes, inputs, &barriers->full[slot], depth * (kDepth / 64),
                    work.column_tile(tile) * S::kN);
  };
  const int stages = work.job.stages, each = work.end - work.begin;
  const int early = work.first < work.tiles() ? min(stages, each) : 0;  // of the first tile
  for (int i = 0; i < early; ++i) load_weights(i, work.first, work.begin + i);
  wait_for_previous();
  for (int i = 0; i < early; ++i) load_inputs(i, work.first, work.begin + i);
  Place place;
  int done = early;
  for (int i = 0; i < early; ++i) place.next(stages);
  for (int tile = work.first; tile < work.tiles(); tile += work.step)
    for (int depth = work.begin; depth < work.end; ++depth) {
      if (tile == work.first && depth < work.begin + early) continue;
      if (done++ >= stages) ptx::barrier_wait(&barriers->empty[place.slot], place.round ^ 1);
      load_weights(place.slot, tile, depth);
      load_inputs(place.slot, tile, depth);
      place.next(stages);
    }
}

// A warpgroup that multiplies 64 rows of w with a tile's rows of x.
template <typename S>
struct Consumer {
  const Work& work;
  uint8_t* ring;
  Barriers* barriers;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;  // warp 0 .. 7: its panel

  float totals[S::kN / 2];
  float sums[S::kN / 2];  // of the group at hand
  uint32_t a[2][S::kPortionSteps][4];
  struct Group {
    float scale[2];      // of the rows lane / 4 and 8 below
    uint32_t offset[2];  // 128 + zero, two bf16; where zeros are any numbers, zero, two f16
  } current, coming;     // being multiplied, being decoded

  __device__ const uint8_t* panel(int slot) const {
    return ring + slot * S::kStageBytes + S::kInputBytes + warp * (S::kBlocks * S::kLayout.block_bytes());
  }

  __device__ void load_group(const uint8_t* from, int group) {
    constexpr int kEach = S::kLayout.block_cols() / S::kGroup;  // of a block
    const uint8_t* at = from + group / kEach * S::kLayout.block_bytes() + S::kLayout.scales_offset() +
                        group % kEach * kPanelRows * 4 + lane / 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 sz = __half22float2(*reinterpret_cast<const __half2*>(at + half * 32));
      coming.scale[half] = sz.x;
      const __half2 zero = __float2half2_rn(sz.y);
      coming.offset[half] = S::kOdd ? *reinterpret_cast<const uint32_t*>(&zero)
                                    : ptx::pack_bf16(kInt4Offset + sz.y, kInt4Offset + sz.y);
    }
  }

  template <int kPortion>
  __device__ void decode(int slot) {
    constexpr int kFirstStep = kPortion * S::kPortionSteps;
    const uint8_t* from = panel(slot);
    if constexpr (kFirstStep % S::kSteps == 0) load_group(from, kFirstStep / S::kSteps);
    constexpr int kPieces = S::kLayout.block_cols() / 32;  // of 32 columns, in a block
#pragma unroll
    for (int i = 0; i < S::kPortionSteps / 2; ++i) {
      const int piece = kFirstStep / 2 + i;
      const uint2 words = *reinterpret_cast<const uint2*>(from + piece / kPieces * S::kLayout.block_bytes() +
                                                          piece % kPieces * 256 + lane * 8);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t(&registers)[4] = a[kPortion % 2][2 * i + step];
        if constexpr (S::kOdd) {
          const __half2 zeros[2] = {*reinterpret_cast<const __half2*>(&coming.offset[0]),
                                    *reinterpret_cast<const __half2*>(&coming.offset[1])};
          int4_to_bf16_less(step ? words.y : words.x, zeros, registers);
        } else {
          int4_to_bf16(step ? words.y : words.x, registers);
#pragma unroll
          for (int j = 0; j < 4; ++j) registers[j] = subtract(registers[j], coming.offset[j % 2]);
        }
      }
    }
  }
  __device__ static uint32_t subtract(uint32_t x, uint32_t y) {
    const __nv_bfloat162 d =
        __hsub2(*reinterpret_cast<__nv_bfloat162*>(&x), *reinterpret_cast<__nv_bfloat162*>(&y));
    return *reinterpret_cast<const uint32_t*>(&d);
  }

  template <int kPortion>
  __device__ void multiply(int slot) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::kPortionSteps; ++i) {
      constexpr int kBoxSteps = 4;
      const int step = kPortion * S::kPortionSteps + i;
      const uint64_t x = ptx::swizzled_factor(ptx::shared_address(ring + slot * S::kStageBytes) +
                                              step / kBoxSteps * (S::kN * kBoxBytes));
      ptx::wgmma_from_registers<S::kN>(sums, a[kPortion % 2][i], x + step % kBoxSteps * ptx::kPieceStep,
                                       step % S::kSteps != 0);
    }
    ptx::wgmma_commit();
  }

  __device__ void promote() {
    ptx::wgmma_wait_for<0>(sums);
#pragma unroll
    for (int i = 0; i < S::kN / 2; ++i) totals[i] = fmaf(current.scale[i / 2 % 2], sums[i], totals[i]);
    current = coming;
  }

  // While a portion is multiplied the next one is decoded, whose registers the portion before has left.
  template <int kPortion>
  __device__ void portions(const Place& place, const Place& next, bool more) {
    multiply<kPortion>(place.slot);
    ptx::wgmma_wait<1>();
    if constexpr (kPortion + 1 < S::kPortions) {
      decode<kPortion + 1>(place.slot);
    } else if (more) {
      ptx::barrier_wait(&barriers->full[next.slot], next.round);
      decode<0>(next.slot);
    }
    if constexpr ((kPortion + 1) * S::kPortionSteps % S::kSteps == 0) promote();
    if constexpr (kPortion + 1 < S::kPortions) portions<kPortion + 1>(place, next, more);
  }

  __device__ void run() {
    Place place;
    for (int tile = work.first; tile < work.tiles(); tile += work.step) {
#pragma unroll
      for (float& t : totals) t = 0;
      if (work.begin < work.end) {
        ptx::barrier_wait(&barriers->full[place.slot], place.round);
        decode<0>(place.slot);
        current = coming;
      }
      for (int depth = work.begin; depth < work.end; ++depth) {
        Place next = place;
        next.next(work.job.stages);
        portions<0>(place, next, depth + 1 < work.end);
        if (lane == 0) ptx::barrier_arrive(&barriers->empty[place.slot]);
        place = next;
      }
      constexpr int kEights = S::kN / 8;
      if (work.job.cluster == 1)
        store(tile, 0, kEights);
      else
        join(tile);
    }
  }

  // Each block of the cluster owns some of the tile's rows of x: all write their sums of these to it, into the
  // stages, which nobody uses any more (a cluster has one tile).
  __device__ void join(int tile) {
    const int own = S::kN / 8 / work.job.cluster;  // eights
    ptx::cluster_sync();
#pragma unroll
    for (int j = 0; j < S::kN / 8; ++j) {
      const int owner = j / own;
      const uint8_t* to = ring + ((work.rank * own + j - owner * own) * kConsumers + thread) * 16;
      ptx::store_in_cluster(
          ptx::address_in(ptx::shared_address(to), uint32_t(owner)),
          make_float4(totals[4 * j], totals[4 * j + 1], totals[4 * j + 2], totals[4 * j + 3]));
    }
    ptx::cluster_sync();
#pragma unroll
    for (int j = 0; j < S::kN / 8; ++j) {
      if (j >= own) break;
      float4 sum = {0, 0, 0, 0};
      for (int from = 0; from < work.job.cluster; ++from) {
        const float4 v = *reinterpret_cast<const float4*>(ring + ((from * own + j) * kConsumers + thread) * 16);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      totals[4 * j] = sum.x, totals[4 * j + 1] = sum.y, totals[4 * j + 2] = sum.z, totals[4 * j + 3] = sum.w;
    }
    store(tile, work.rank * own * 8, own);
  }

  // The first `eights` of the totals: rows of x from the tile's `first_row` on.
  __device__ void store(int tile, int first_row, int eights) const {
    const Job& job = work.job;
    const int column = work.row_tile(tile) * kTileRows + warp * kPanelRows, upper = column + lane / 4;
    const int row = work.column_tile(tile) * S::kN + first_row;
    const float bias[2] = {job.bias && upper < job.n ? job.bias[upper] : 0,
                           job.bias && upper + 8 < job.n ? job.bias[upper + 8] : 0};
#pragma unroll
    for (int j = 0; j < S::kN / 8; ++j) {
      if (j >= eights) break;
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = fmaf(totals[4 * j + i], 1 / kInt4ScaleUp, bias[i / 2]);
      if (job.f32) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          store_one(static_cast<float*>(job.out), row + 8 * j + lane % 4 * 2 + i % 2, upper + i / 2 * 8, v[i]);
        continue;
      }
      auto* out = static_cast<__nv_bfloat16*>(job.out);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t turned = ptx::transpose_8x8(ptx::pack_bf16(v[2 * half], v[2 * half + 1]));
        const int at = row + 8 * j + lane / 4, first = column + half * 8 + lane % 4 * 2;
        if (job.pairs) {
          if (at < job.m && first < job.n)
            *reinterpret_cast<uint32_t*>(out + at * job.out_stride + first) = turned;
        } else {
          const auto both = *reinterpret_cast<const __nv_bfloat162*>(&turned);
          store_one(out, at, first, both.x);
          store_one(out, at, first + 1, both.y);
        }
      }
    }
  }
  template <typename T>
  __device__ void store_one(T* out, int row, int column, T value) const {
    if (row < work.job.m && column < work.job.n) out[row * work.job.out_stride + column] = value;
  }
};

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
    int4_gemm_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap inputs,
                     const __grid_constant__ Job job) {
  extern __shared__ uint8_t shared[];
  auto* ring = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared) + 1023) & ~uintptr_t(1023));
  auto* barriers = reinterpret_cast<Barriers*>(ring + job.stages * S::kStageBytes);
  let_next_start();
  if (threadIdx.x == kConsumers) {
    ptx::prefetch_map(&weights);
    ptx::prefetch_map(&inputs);
  }
  if (int(threadIdx.x) < job.stages) {
    ptx::barrier_init(&barriers->full[threadIdx.x], 1);
    ptx::barrier_init(&barriers->empty[threadIdx.x], kConsumers / 32);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  const Work work(job);
  if (threadIdx.x >= kConsumers) {
    ptx::give_registers<40>();
    if (threadIdx.x == kConsumers) produce<S>(&weights, &inputs, work, ring, barriers);
  } else {
    ptx::take_registers<232>();
    wait_for_previous();
    Consumer<S>{work, ring, barriers}.run();
  }
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Job);
struct Instance {
  int columns, group;
  bool odd;
  int stage_bytes;
  Kernel kernel;
};
template <int kN, int kSteps, bool kOdd = false>
Instance instance() {
  using S = Shape<kN, kSteps, kOdd>;
  return {kN, S::kGroup, kOdd, S::kStageBytes, int4_gemm_kernel<S>};
}
std::span<const Instance> instances();

const Instance* find(const Int4GemmConfig& c, int group) {
  for (const Instance& i : instances())
    if (i.columns == c.columns && i.group == group && i.odd == c.odd_zeros) return &i;
  return nullptr;
}

int64_t shared_bytes(const Instance& i, int stages) {
  return 1024 + int64_t(stages) * i.stage_bytes + int64_t(sizeof(Barriers));
}

}  // namespace

bool int4_gemm_supports(const Int4GemmConfig& c, int group) {
  const Instance* i = find(c, group);
  return i && c.cluster > 0 && c.cluster <= 8 && c.columns / 8 % c.cluster == 0;
}
bool int4_gemm_supports(const LinearArgs& a) {
  return a.x.rows > 0 && a.x.stride % 8 == 0 && reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 &&
         a.x.dtype == DType::bf16 && (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32);
}

void int4_gemm_prepare() {
  for (const Instance& i : instances())
    CUDA_CHECK(cudaFuncSetAttribute(i.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
}

void int4_gemm(const Context& context, const LinearArgs& a, const void* weights, const Int4Layout& layout,
               const Int4GemmConfig& config) {
  const Instance* instance = find(config, layout.group);
  const int64_t m = a.x.rows, n = a.out.cols, k = a.x.cols;
  CHECK(instance && int4_gemm_supports(config, layout.group) && int4_gemm_supports(a));
  CHECK(a.out.rows == m && layout.rows == n && layout.cols == k && k % layout.block_cols() == 0);
  const auto up = [](int64_t x, int64_t by) { return (x + by - 1) / by; };
  Job job{};
  job.out = a.out.data;
  job.out_stride = a.out.stride;
  job.bias = a.bias;
  job.m = int(m), job.n = int(n);
  job.row_tiles = int(up(n, kTileRows));
  job.column_tiles = int(up(m, config.columns));
  job.depths = int(up(k, kDepth));
  job.cluster = config.cluster;
  job.stages = int(std::min<int64_t>(kMostInt4GemmStages,
                                     (kMaxSharedBytes - shared_bytes(*instance, 0)) / instance->stage_bytes));
  job.f32 = a.out.dtype == DType::f32;
  job.pairs = n % 2 == 0 && a.out.stride % 2 == 0 && reinterpret_cast<uintptr_t>(a.out.data) % 4 == 0;
  const int64_t tiles = int64_t(job.row_tiles) * job.column_tiles;
  // A cluster's blocks add up in the stages, so it has one tile.
  const int64_t blocks =
      config.cluster == 1 ? std::min<int64_t>(tiles, context.multiprocessors) : tiles * config.cluster;
  launch_clusters(context, instance->kernel, unsigned(config.cluster), dim3(unsigned(blocks)), dim3(kThreads),
                  size_t(shared_bytes(*instance, job.stages)),
                  tensor_map_blocks(weights, layout.block_bytes(), layout.blocks(), layout.panels(),
                                    kDepth / layout.block_cols(), kTilePanels),
                  tensor_map_bf16_boxes(a.x.data, m, k, a.x.stride, config.columns, kDepth / 64, 256), job);
}

namespace {

// What exists: x's rows in a tile, steps of 16 columns in a group; zeros that are no integers come with groups
// of 32 alone (GGUF's).
std::span<const Instance> instances() {
  static const Instance list[] = {
      instance<16, 8>(),  instance<32, 8>(),  instance<64, 8>(),       instance<96, 8>(),
      instance<128, 8>(), instance<160, 8>(), instance<32, 4>(),       instance<128, 4>(),
      instance<32, 2>(),  instance<128, 2>(), instance<32, 2, true>(), instance<128, 2, true>(),
  };
  return list;
}

}  // namespace
}  // namespace sluice::cuda
