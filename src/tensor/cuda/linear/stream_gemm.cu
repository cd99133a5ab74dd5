#include "tensor/cuda/linear/stream_gemm.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <span>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/device/tensor_map.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/wgmma.h"

namespace sluice::cuda {
namespace {

constexpr int kBox = 64;  // columns of a box: 128 bytes, the width of the swizzle
constexpr int kRowBytes = kBox * 2;
constexpr int kTile = kStreamTile, kMaxRows = 32;
constexpr int kMaxTiles = 1 << 16;           // of a product
constexpr int kMaxSharedBytes = 227 * 1024;  // of a block of sm_90
constexpr int kConsumers = 128;              // threads: one warpgroup multiplies
constexpr int kThreads = kConsumers + 32;

// What one kernel is compiled for: x's rows, and boxes per stage.
template <int kRows_, int kBoxes_>
struct Shape {
  static constexpr int kRows = kRows_, kBoxes = kBoxes_;
  static constexpr int kDepth = kBox * kBoxes;
  static constexpr int kInputBoxBytes = kRows * kRowBytes;
  static constexpr int kSums = kRows / 2;  // of a thread
  // Sums kept apart, by columns: products into the same registers wait for one another, about 60 cycles each,
  // and with few rows that is longer than the memory takes to bring the next stage.
  static constexpr int kChains = kRows <= 16 ? 4 : 2;
};

struct Job {
  void* out;
  int64_t out_stride;
  const float* bias;  // or null
  float* parts;       // [thread block][2][tile's sums]
  int* arrived;       // [tile], zero before and after
  int m, n;
  int tile;        // rows of w, at most kTile; what lies behind them is multiplied as well, and dropped
  int tile_units;  // units of a tile
  int units;       // of the product
  int share_step;  // 1: a tile may be shared by blocks; tile_units: never
  int stages;
  bool f32;
};

// Which units a block owns.
struct Shares {
  int64_t units, blocks, step;

  __device__ explicit Shares(const Job& job) : units(job.units), blocks(int(gridDim.x)), step(job.share_step) {}
  __device__ int begin(int block) const { return int(block * (units / step) / blocks * step); }
  __device__ int owner(int unit) const { return int(((unit + 1) * blocks - 1) / units); }  // where step is 1
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

// One thread. Weights may be read before the kernel before is done (they do not change after load), x may not.
template <typename S>
struct Producer {
  const CUtensorMap* weights;
  const CUtensorMap* inputs;
  const Job& job;
  Ring<S> ring;
  uint64_t policy = ptx::evict_first_policy();

  // Where a unit lies in w: counted up, since divisions would cost more than all else here.
  struct Cursor {
    int k, row;
  };
  __device__ Cursor at(int unit) const {
    const int tile = unit / job.tile_units;
    return {unit - tile * job.tile_units, tile * job.tile};
  }
  __device__ void next(Cursor& c) const {
    if (++c.k == job.tile_units) c = {0, c.row + job.tile};
  }

  // One copy a stage for w and one for x: a copy costs this thread 50 to 90 ns whatever its size.
  __device__ void load_weights(int slot, const Cursor& c) const {
    uint64_t* full = &ring.barriers->full[slot];
    ptx::barrier_expect_bytes(full, uint32_t(ring.stage_bytes()));
    if constexpr (S::kBoxes == 1)
      ptx::copy_box(ring.weights(slot, 0), weights, full, c.k * kBox, c.row, policy);
    else
      ptx::copy_boxes(ring.weights(slot, 0), weights, full, c.k * S::kBoxes, c.row, policy);
  }
  __device__ void load_inputs(int slot, const Cursor& c) const {
    uint64_t* full = &ring.barriers->full[slot];
    if constexpr (S::kBoxes == 1)
      ptx::copy_box(ring.inputs(slot, 0), inputs, full, c.k * kBox, 0);
    else
      ptx::copy_boxes(ring.inputs(slot, 0), inputs, full, c.k * S::kBoxes, 0);
  }

  __device__ void run(int begin, int end) const {
    const int head = min(end - begin, job.stages);
    const Cursor first = at(begin);
    Cursor cursor = first;
    for (int i = 0; i < head; ++i, next(cursor)) load_weights(i, cursor);
    wait_for_previous();
    Cursor input = first;
    for (int i = 0; i < head; ++i, next(input)) load_inputs(i, input);
    Place place;
    for (int i = begin + head; i < end; ++i, next(cursor), place.next(job.stages)) {
      ptx::barrier_wait(&ring.barriers->empty[place.slot], place.round);
      load_weights(place.slot, cursor);
      load_inputs(place.slot, cursor);
    }
  }
};

// The warpgroup that multiplies.
template <typename S>
struct Consumer {
  const Job& job;
  const Shares shares;
  const Ring<S> ring;
  const int block = int(blockIdx.x), thread = int(threadIdx.x);
  int votes = 0;

  float sums[S::kChains][S::kSums];

  __device__ void multiply(int slot) {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const uint64_t x = ptx::swizzled_factor(ptx::shared_address(ring.inputs(slot, box)));
      const uint64_t w = ptx::swizzled_factor(ptx::shared_address(ring.weights(slot, box)));
#pragma unroll
      for (int piece = 0; piece < kBox / 16; ++piece)
        ptx::wgmma<S::kRows>(sums[piece % S::kChains], w + piece * ptx::kPieceStep,
                             x + piece * ptx::kPieceStep);
    }
  }
  __device__ void release(int slot) const {
    if (thread % 32 == 0) ptx::barrier_arrive(&ring.barriers->empty[slot]);
  }
  __device__ void wait_for_each_other() const { asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory"); }

  __device__ void run(int begin, int end) {
    Place place;
    for (int unit = begin; unit < end;) {
      const int tile = unit / job.tile_units;
      const int count = min((tile + 1) * job.tile_units, end) - unit;
      const bool partial = count < job.tile_units;
      Joint joint;
      if (partial)
        joint = {shares.owner(tile * job.tile_units), shares.owner((tile + 1) * job.tile_units - 1), tile};

      int before = 0;
#pragma unroll
      for (auto& chain : sums)
#pragma unroll
        for (float& sum : chain) sum = 0;
      for (int i = 0; i < count; ++i) {
        if (partial && i + 1 == count) joint.arrived = peek(joint);
        ptx::barrier_wait(&ring.barriers->full[place.slot], place.round);
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
      add_chains();
      if (!partial || join(joint)) store(tile);
      unit += count;
    }
  }

  __device__ void add_chains() {
#pragma unroll
    for (int chain = 1; chain < S::kChains; ++chain)
#pragma unroll
      for (int i = 0; i < S::kSums; ++i) sums[0][i] += sums[chain][i];
  }

  // A block has at most two partial tiles: one that it did not begin, and one that it began.
  __device__ float4* part(int of_block, bool began) const {
    return reinterpret_cast<float4*>(job.parts + (int64_t(of_block) * 2 + began) * (kTile * S::kRows)) + thread;
  }
  // A tile whose columns several blocks share out, from `first` to `last`.
  struct Joint {
    int first, last, tile;
    int arrived;  // blocks, when thread 0 looked
  };
  __device__ int* arrivals(const Joint& j) const { return &job.arrived[j.tile]; }
  __device__ int peek(const Joint& j) const {
    return thread == 0 ? *static_cast<const volatile int*>(arrivals(j)) : 0;
  }
  // True: all parts are there, and sums[0] is their sum, in the order of k. Else this block's part was left for
  // the last.
  __device__ bool join(const Joint& j) {
    if (!all_others_arrived(j)) {
      leave_part(part(block, block == j.first));
      if (!arrive_last(j)) return false;
    }
    if (block > j.first) add_parts_before(j.first);
    for (int from = block + 1; from <= j.last; ++from) {
      const float4* theirs = part(from, false);
#pragma unroll
      for (int i = 0; i < S::kSums; i += 4) {
        const float4 v = __ldcg(theirs + i / 4 * kConsumers);
        sums[0][i] += v.x, sums[0][i + 1] += v.y, sums[0][i + 2] += v.z, sums[0][i + 3] += v.w;
      }
    }
    return true;
  }
  // Mostly a block finds the others' parts there already, since a block's first tile is the last of the one
  // before; so it looks (while its last stage is under way) before it writes.
  __device__ bool all_others_arrived(const Joint& j) {
    const bool all = thread == 0 && j.arrived == j.last - j.first;
    if (all) *arrivals(j) = 0;  // for the next product
    if (thread == 0) __threadfence();
    return first_thread_says(all);
  }
  __device__ void leave_part(float4* mine) const {
#pragma unroll
    for (int i = 0; i < S::kSums; i += 4)
      __stcg(mine + i / 4 * kConsumers,
             make_float4(sums[0][i], sums[0][i + 1], sums[0][i + 2], sums[0][i + 3]));
  }
  __device__ bool arrive_last(const Joint& j) {
    wait_for_each_other();
    bool all = false;
    if (thread == 0) {  // its fences speak for all, who met at the barrier
      __threadfence();
      all = atomicAdd(arrivals(j), 1) == j.last - j.first;
      if (all) *arrivals(j) = 0;
      __threadfence();
    }
    return first_thread_says(all);
  }
  __device__ bool first_thread_says(bool value) {
    bool* slot = &ring.barriers->votes[votes++ % 2];
    if (thread == 0) *slot = value;
    wait_for_each_other();
    return *slot;
  }
  __device__ void add_parts_before(int first) {
    float before[S::kSums] = {};
    for (int from = first; from < block; ++from) {
      const float4* theirs = part(from, from == first);
#pragma unroll
      for (int i = 0; i < S::kSums; i += 4) {
        const float4 v = __ldcg(theirs + i / 4 * kConsumers);
        before[i] += v.x, before[i + 1] += v.y, before[i + 2] += v.z, before[i + 3] += v.w;
      }
    }
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) sums[0][i] += before[i];
  }

  template <typename Out>
  __device__ void store_as(int tile, Out* out) const {
    const int warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_of_tile = warp * 16 + lane / 4 + half * 8, column = tile * job.tile + row_of_tile;
      if (row_of_tile >= job.tile || column >= job.n) continue;
      const float bias = job.bias ? job.bias[column] : 0;
#pragma unroll
      for (int i = half * 2; i < S::kSums; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = i / 4 * 8 + lane % 4 * 2 + e;
          if (row < job.m) out[row * job.out_stride + column] = Out(sums[0][i + e] + bias);
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
__global__ void __launch_bounds__(kThreads, 1)
    stream_gemm_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap inputs,
                       const __grid_constant__ Job job) {
  extern __shared__ uint8_t shared[];
  Ring<S> ring;
  ring.tile = job.tile;
  ring.barriers = reinterpret_cast<Barriers*>(shared);
  ring.stages = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared) + sizeof(Barriers) + 1023) &
                                           ~uintptr_t(1023));

  let_next_start();
  if (threadIdx.x == kConsumers) {
    ptx::prefetch_map(&weights);
    ptx::prefetch_map(&inputs);
  }
  if (threadIdx.x < unsigned(job.stages)) {
    ptx::barrier_init(&ring.barriers->full[threadIdx.x], 1);
    ptx::barrier_init(&ring.barriers->empty[threadIdx.x], kConsumers / 32);
    ptx::barrier_init_fence();
  }
  __syncthreads();

  const Shares shares(job);
  const int begin = shares.begin(int(blockIdx.x)), end = shares.begin(int(blockIdx.x) + 1);
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) Producer<S>{&weights, &inputs, job, ring}.run(begin, end);
  } else {
    wait_for_previous();
    Consumer<S>{job, shares, ring}.run(begin, end);
  }
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Job);
struct Instance {
  int rows, depth;
  Kernel kernel;
};
template <int kRows, int kBoxes>
Instance instance() {
  using S = Shape<kRows, kBoxes>;
  return {S::kRows, S::kDepth, stream_gemm_kernel<S>};
}
std::span<const Instance> instances();

const Instance* find(const StreamConfig& c) {
  for (const Instance& i : instances())
    if (i.rows == c.rows && i.depth == c.depth) return &i;
  return nullptr;
}

}  // namespace

bool stream_gemm_supports(const StreamConfig& c) {
  return find(c) && c.tile > 0 && c.tile % 8 == 0 && c.tile <= kTile && c.stages >= 2 &&
         c.stages <= kMaxStreamStages && stream_shared_bytes(c) <= kMaxSharedBytes;
}
bool stream_gemm_supports(const LinearArgs& a) {
  return a.x.rows > 0 && a.x.rows <= kMaxRows && a.x.cols % 8 == 0 && a.x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && a.x.dtype == DType::bf16 &&
         (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32);
}

void stream_gemm_prepare() {
  for (const Instance& i : instances())
    CUDA_CHECK(cudaFuncSetAttribute(i.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
}

size_t stream_gemm_workspace_bytes(int multiprocessors) {
  return kMaxTiles * sizeof(int) + size_t(multiprocessors) * 2 * kTile * kMaxRows * sizeof(float);
}

void stream_gemm(const Context& context, const LinearArgs& a, const void* weights, const StreamConfig& config,
                 void* workspace) {
  const Instance* instance = find(config);
  const int64_t m = a.x.rows, n = a.out.cols, k = a.x.cols;
  CHECK(instance && stream_gemm_supports(config) && stream_gemm_supports(a));
  CHECK(m <= config.rows && a.out.rows == m && a.w.rows == n && a.w.cols == k);
  const int64_t tiles = (n + config.tile - 1) / config.tile, tile_units = (k + config.depth - 1) / config.depth;
  CHECK(tiles <= kMaxTiles && tiles * tile_units < int64_t(1) << 31);

  Job job{};
  job.out = a.out.data;
  job.out_stride = a.out.stride;
  job.bias = a.bias;
  job.arrived = static_cast<int*>(workspace);
  job.parts = reinterpret_cast<float*>(job.arrived + kMaxTiles);
  job.m = int(m);
  job.n = int(n);
  job.tile = config.tile;
  job.tile_units = int(tile_units);
  job.units = int(tiles * tile_units);
  job.share_step = config.whole_tiles ? job.tile_units : 1;
  job.stages = config.stages;
  job.f32 = a.out.dtype == DType::f32;
  const int boxes = config.depth / kBox;
  CHECK(boxes == 1 || k % kBox == 0);
  const auto map = [&](const void* data, int64_t rows, int64_t stride, int box_rows) {
    return boxes == 1 ? tensor_map_bf16(data, rows, k, stride, box_rows, kBox, 128, 128)
                      : tensor_map_bf16_boxes(data, rows, k, stride, box_rows, boxes, 128);
  };
  const int64_t blocks = std::min<int64_t>(job.units / job.share_step, context.multiprocessors);
  launch(context, instance->kernel, dim3(unsigned(blocks)), dim3(kThreads), size_t(stream_shared_bytes(config)),
         map(weights, n, k, config.tile), map(a.x.data, m, a.x.stride, config.rows), job);
}

namespace {

// What exists: x's rows, boxes of 64 columns per stage.
std::span<const Instance> instances() {
  static const Instance list[] = {
      instance<8, 1>(),  instance<8, 2>(),  instance<8, 4>(),  instance<16, 1>(), instance<16, 2>(),
      instance<16, 4>(), instance<32, 1>(), instance<32, 2>(), instance<32, 4>(),
  };
  return list;
}

}  // namespace
}  // namespace sluice::cuda
