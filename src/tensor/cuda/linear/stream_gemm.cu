#include "tensor/cuda/linear/stream_gemm.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/device/tensor_map.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/wgmma.h"

namespace sluice::cuda {
namespace {

constexpr int kBox = 64;  // rows and columns of a box of w
constexpr int kBoxBytes = kBox * kBox * 2;
constexpr int kMaxTiles = 1 << 16;  // of a product
constexpr int kMaxStages = 32;
constexpr int64_t kMaxPartFloats = 128 * 128;  // of a tile

// What one kernel is compiled for: x's rows, 64-row blocks of a tile per warpgroup, warpgroups, boxes per
// stage.
template <int kRows_, int kBlocks_, int kGroups_, int kBoxes_>
struct Shape {
  static constexpr int kRows = kRows_, kBlocks = kBlocks_, kGroups = kGroups_, kBoxes = kBoxes_;
  static constexpr int kTile = kBox * kBlocks * kGroups;
  static constexpr int kDepth = kBox * kBoxes;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kInputBoxBytes = kRows * kBox * 2;
  static constexpr int kWeightBytes = kTile * kDepth * 2;
  static constexpr int kStageBytes = kWeightBytes + kInputBoxBytes * kBoxes;
  static constexpr int kSums = kRows / 2;  // of a thread and 64-row block
};

struct Job {
  void* out;
  int64_t out_stride;
  const float* bias;  // or null
  float* parts;       // [block][2][tile's sums]
  int* arrived;       // [tile], zero before and after
  int m, n;
  int tile_units;  // units of a tile
  int units;       // of the product
  int stages, prefetch;
  bool f32;
};

// Which units a block owns.
struct Shares {
  int64_t units, blocks;

  __device__ int begin(int block) const { return int(block * units / blocks); }
  __device__ int owner(int unit) const { return int(((unit + 1) * blocks - 1) / units); }
};

struct Barriers {
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
  int last_to_arrive;
};

// Where in the ring a unit goes, counted from the block's first.
struct Place {
  int slot = 0;
  uint32_t round = 0;  // parity of how often the ring was gone round
  __device__ void next(int stages) {
    if (++slot == stages) slot = 0, round ^= 1;
  }
};

// One thread. Weights may be read before the kernel before is done (they do not change after load), inputs may
// not.
template <typename S>
struct Producer {
  const CUtensorMap* weights;
  const CUtensorMap* inputs;
  uint8_t* ring;
  Barriers* barriers;
  int tile_units;
  uint64_t policy = ptx::evict_first_policy();

  __device__ void load_weights(int slot, int unit) const {
    const int tile = unit / tile_units, k = unit % tile_units;
    uint64_t* full = &barriers->full[slot];
    ptx::barrier_expect_bytes(full, S::kStageBytes);
#pragma unroll
    for (int row = 0; row < S::kTile / kBox; ++row)
#pragma unroll
      for (int box = 0; box < S::kBoxes; ++box)
        ptx::copy_box(ring + slot * S::kStageBytes + (row * S::kBoxes + box) * kBoxBytes, weights, full,
                      k * S::kDepth + box * kBox, tile * S::kTile + row * kBox, policy);
  }
  __device__ void prefetch_weights(int unit) const {
    const int tile = unit / tile_units, k = unit % tile_units;
#pragma unroll
    for (int row = 0; row < S::kTile / kBox; ++row)
#pragma unroll
      for (int box = 0; box < S::kBoxes; ++box)
        ptx::prefetch_box(weights, k * S::kDepth + box * kBox, tile * S::kTile + row * kBox);
  }
  __device__ void load_inputs(int slot, int unit) const {
    const int k = unit % tile_units;
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box)
      ptx::copy_box(ring + slot * S::kStageBytes + S::kWeightBytes + box * S::kInputBoxBytes, inputs,
                    &barriers->full[slot], k * S::kDepth + box * kBox, 0);
  }

  __device__ void run(int begin, int end, int stages, int prefetch) const {
    const int head = min(end, begin + stages);
    for (int unit = begin; unit < head; ++unit) load_weights(unit - begin, unit);
    for (int unit = head; unit < min(end, head + prefetch); ++unit) prefetch_weights(unit);
    wait_for_previous();
    for (int unit = begin; unit < head; ++unit) load_inputs(unit - begin, unit);
    Place place;
    for (int unit = head; unit < end; ++unit) {
      ptx::barrier_wait(&barriers->empty[place.slot], place.round);
      load_weights(place.slot, unit);
      load_inputs(place.slot, unit);
      place.next(stages);
    }
    // Late on purpose: what the next kernel prefetches is to fill the time in which this one joins its last
    // tiles.
    let_next_start();
  }
};

// The warpgroups that multiply.
template <typename S>
struct Consumer {
  const Job& job;
  const Shares shares;
  const uint8_t* ring;
  Barriers* barriers;
  const int thread = int(threadIdx.x);
  const int group = thread / 128;

  float sums[S::kBlocks][S::kSums];

  __device__ void multiply(int slot) {
    const uint32_t stage = ptx::shared_address(ring) + uint32_t(slot * S::kStageBytes);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const uint64_t x = ptx::swizzled_factor(stage + S::kWeightBytes + box * S::kInputBoxBytes);
#pragma unroll
      for (int piece = 0; piece < kBox / 16; ++piece)
#pragma unroll
        for (int block = 0; block < S::kBlocks; ++block) {
          const int row = group * S::kBlocks + block;
          const uint64_t w = ptx::swizzled_factor(stage + uint32_t((row * S::kBoxes + box) * kBoxBytes));
          ptx::wgmma<S::kRows>(sums[block], w + piece * ptx::kPieceStep, x + piece * ptx::kPieceStep);
        }
    }
  }
  __device__ void release(int slot) const {
    if (thread % 32 == 0) ptx::barrier_arrive(&barriers->empty[slot]);
  }
  __device__ void wait_for_each_other() const {
    asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers) : "memory");
  }

  __device__ void run(int begin, int end) {
    Place place;
    for (int unit = begin; unit < end;) {
      const int tile = unit / job.tile_units;
      const int count = min((tile + 1) * job.tile_units, end) - unit;
      int before = 0;
#pragma unroll
      for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
        for (float& sum : sums[b]) sum = 0;
      for (int i = 0; i < count; ++i) {
        ptx::barrier_wait(&barriers->full[place.slot], place.round);
        ptx::wgmma_fence();
        multiply(place.slot);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();  // the stage before was read to its end
        if (i > 0) release(before);
        before = place.slot;
        place.next(job.stages);
      }
      ptx::wgmma_wait<0>();
      release(before);
      if (count == job.tile_units || join(tile)) store(tile);
      unit += count;
    }
  }

  // A block has at most two partial tiles: one that it did not begin, and one that it began.
  __device__ float4* part(int block, bool began) const {
    constexpr int64_t kFloats = int64_t(S::kTile) * S::kRows;
    return reinterpret_cast<float4*>(job.parts + (int64_t(block) * 2 + began) * kFloats) + thread;
  }
  // Leaves this block's part for the others; true: all are there, and `sums` is their sum, in the order of k.
  __device__ bool join(int tile) {
    constexpr int kChunk = S::kSums < 16 ? S::kSums : S::kSums < 64 ? 16 : 4;
    const int me = int(blockIdx.x);
    const int first = shares.owner(tile * job.tile_units), last = shares.owner((tile + 1) * job.tile_units - 1);
    float4* mine = part(me, me == first);
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < S::kSums; i += 4)
        __stcg(mine + (b * S::kSums + i) / 4 * S::kConsumers,
               make_float4(sums[b][i], sums[b][i + 1], sums[b][i + 2], sums[b][i + 3]));
    __threadfence();
    wait_for_each_other();
    if (thread == 0) {
      barriers->last_to_arrive = atomicAdd(&job.arrived[tile], 1) == last - first;
      if (barriers->last_to_arrive) job.arrived[tile] = 0;  // for the next product
      __threadfence();
    }
    wait_for_each_other();
    if (!barriers->last_to_arrive) return false;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < S::kSums; i += kChunk) {
        float sum[kChunk] = {};
        for (int block = first; block <= last; ++block) {
          const float4* theirs = part(block, block == first);
#pragma unroll
          for (int e = 0; e < kChunk; e += 4) {
            const float4 v = block == me ? make_float4(sums[b][i + e], sums[b][i + e + 1], sums[b][i + e + 2],
                                                       sums[b][i + e + 3])
                                         : __ldcg(theirs + (b * S::kSums + i + e) / 4 * S::kConsumers);
            sum[e] += v.x, sum[e + 1] += v.y, sum[e + 2] += v.z, sum[e + 3] += v.w;
          }
        }
#pragma unroll
        for (int e = 0; e < kChunk; ++e) sums[b][i + e] = sum[e];
      }
    return true;
  }

  template <typename Out>
  __device__ void store_as(int tile, Out* out) const {
    const int warp = thread % 128 / 32, lane = thread % 32;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = tile * S::kTile + (group * S::kBlocks + b) * kBox + warp * 16 + lane / 4 + half * 8;
        if (column >= job.n) continue;
        const float bias = job.bias ? job.bias[column] : 0;
#pragma unroll
        for (int i = half * 2; i < S::kSums; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int row = i / 4 * 8 + lane % 4 * 2 + e;
            if (row < job.m) out[row * job.out_stride + column] = Out(sums[b][i + e] + bias);
          }
      }
  }
  __device__ void store(int tile) const {
    if (job.f32)
      store_as(tile, static_cast<float*>(job.out));
    else
      store_as(tile, static_cast<__nv_bfloat16*>(job.out));
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 2)
    stream_gemm_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap inputs,
                       Job job) {
  extern __shared__ uint8_t shared[];
  uint8_t* ring = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared) + 1023) & ~uintptr_t(1023));
  auto* barriers = reinterpret_cast<Barriers*>(ring + job.stages * S::kStageBytes);

  if (threadIdx.x == 0) {
    for (int i = 0; i < job.stages; ++i) {
      ptx::barrier_init(&barriers->full[i], 1);
      ptx::barrier_init(&barriers->empty[i], S::kConsumers / 32);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();

  const Shares shares{job.units, int(gridDim.x)};
  const int begin = shares.begin(int(blockIdx.x)), end = shares.begin(int(blockIdx.x) + 1);
  if (threadIdx.x >= S::kConsumers) {
    if (threadIdx.x == S::kConsumers)
      Producer<S>{&weights, &inputs, ring, barriers, job.tile_units}.run(begin, end, job.stages, job.prefetch);
  } else {
    wait_for_previous();
    Consumer<S>{job, shares, ring, barriers}.run(begin, end);
  }
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Job);
struct Instance {
  int rows, tile, depth, threads;
  Kernel kernel;
};
template <int kRows, int kBlocks, int kGroups, int kBoxes>
Instance instance() {
  using S = Shape<kRows, kBlocks, kGroups, kBoxes>;
  return {S::kRows, S::kTile, S::kDepth, S::kThreads, stream_gemm_kernel<S>};
}
std::span<const Instance> instances();

const Instance* find(const StreamConfig& c) {
  for (const Instance& i : instances())
    if (i.rows == c.rows && i.tile == c.tile && i.depth == c.depth) return &i;
  return nullptr;
}

}  // namespace

bool stream_gemm_supports(const StreamConfig& c) {
  return find(c) && c.stages >= 2 && c.stages <= kMaxStages && c.prefetch >= 0;
}
bool stream_gemm_supports(const LinearArgs& a) {
  return a.x.rows > 0 && a.x.rows <= 128 && a.x.cols % 8 == 0 && a.x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && a.x.dtype == DType::bf16 &&
         (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32);
}

void stream_gemm_prepare() {
  for (const Instance& i : instances())
    CUDA_CHECK(cudaFuncSetAttribute(i.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
}

size_t stream_gemm_workspace_bytes(int multiprocessors) {
  return kMaxTiles * sizeof(int) + size_t(multiprocessors) * 2 * kMaxPartFloats * sizeof(float);
}

CUtensorMap stream_gemm_weight_map(const void* w, int64_t n, int64_t k) {
  return tensor_map_bf16(w, n, k, k, kBox, kBox, 128);
}

void stream_gemm(const Context& context, const LinearArgs& a, const CUtensorMap& weight_map,
                 const StreamConfig& config, void* workspace) {
  const Instance* instance = find(config);
  const int64_t m = a.x.rows, n = a.out.cols, k = a.x.cols;
  CHECK(instance && stream_gemm_supports(config) && stream_gemm_supports(a));
  CHECK(m <= config.rows && a.out.rows == m && a.w.rows == n && a.w.cols == k);
  const int64_t tiles = (n + config.tile - 1) / config.tile, tile_units = (k + config.depth - 1) / config.depth;
  CHECK(tiles <= kMaxTiles && tiles * tile_units < int64_t(1) << 31 &&
        config.tile * config.rows <= kMaxPartFloats);

  Job job{};
  job.out = a.out.data;
  job.out_stride = a.out.stride;
  job.bias = a.bias;
  job.arrived = static_cast<int*>(workspace);
  job.parts = reinterpret_cast<float*>(job.arrived + kMaxTiles);
  job.m = int(m);
  job.n = int(n);
  job.tile_units = int(tile_units);
  job.units = int(tiles * tile_units);
  job.stages = config.stages;
  job.prefetch = config.prefetch;
  job.f32 = a.out.dtype == DType::f32;
  const CUtensorMap inputs = tensor_map_bf16(a.x.data, m, k, a.x.stride, config.rows, kBox, 128);
  const unsigned blocks = unsigned(std::min<int64_t>(job.units, context.multiprocessors));
  launch(context, instance->kernel, dim3(blocks), dim3(unsigned(instance->threads)),
         size_t(stream_shared_bytes(config)), weight_map, inputs, job);
}

namespace {

// What exists. Rows of x, 64-row blocks per warpgroup, warpgroups, boxes per stage.
std::span<const Instance> instances() {
  static const Instance list[] = {
      instance<8, 1, 1, 1>(),  instance<8, 1, 1, 2>(),  instance<8, 2, 1, 1>(),
      instance<16, 1, 1, 1>(), instance<16, 1, 1, 2>(), instance<16, 2, 1, 1>(),
      instance<32, 2, 1, 1>(), instance<64, 2, 1, 1>(), instance<128, 1, 2, 1>(),
  };
  return list;
}

}  // namespace
}  // namespace sluice::cuda
