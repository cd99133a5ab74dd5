#include "tensor/cuda/linear/stream_gemm.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/device/tensor_map.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/cluster.h"
#include "tensor/cuda/ptx/wgmma.h"

namespace sluice::cuda {
namespace {

constexpr int kBox = 64;  // columns of a box: 128 bytes, the width of the swizzle
constexpr int kRowBytes = kBox * 2;
constexpr int kMaxTiles = 1 << 16;  // of a product
constexpr int kMaxStages = 32;
constexpr int kMaxMultiprocessors = 1024;
constexpr int64_t kMaxPartFloats = 256 * 128;  // of a tile

// What one kernel is compiled for: x's rows, 64-row blocks of a tile per warpgroup, warpgroups, boxes per
// stage, and thread blocks that work on neighbouring tiles in step and load x for each other.
template <int kRows_, int kBlocks_, int kGroups_, int kBoxes_, int kPeers_>
struct Shape {
  static constexpr int kRows = kRows_, kBlocks = kBlocks_, kGroups = kGroups_, kBoxes = kBoxes_,
                       kPeers = kPeers_;
  static constexpr int kTile = 64 * kBlocks * kGroups;  // at most
  static constexpr int kDepth = kBox * kBoxes;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kInputBoxBytes = kRows * kRowBytes;
  static constexpr int kSums = kRows / 2;  // of a thread and 64-row block
  // Sums kept apart, by columns: products into the same registers wait for one another, about 60 cycles each,
  // and with few rows that is longer than the memory takes to bring the next stage.
  static constexpr int kChains = kRows <= 16 ? 4 : kRows == 32 ? 2 : 1;
};

// Of a multiprocessor: thread blocks (of any of these products) that came to it, and of them, those that have
// asked for all their weights, both counted for ever; and of which product the last to come was.
struct Turn {
  unsigned came, asked, product;
};

struct Job {
  void* out;
  int64_t out_stride;
  const float* bias;  // or null
  float* parts;       // [thread block][2][tile's sums]
  int* arrived;       // [tile][peer], zero before and after
  Turn* turns;        // [multiprocessor]
  int m, n;
  int tile;  // rows of w; those up to the compiled size are computed from whatever lies behind, and dropped
  int tile_units;  // units of a tile (of the peers' tiles together)
  int units;       // of the product
  int share_step;  // 1: a tile may be shared by teams; tile_units: never
  int stages;
  unsigned product;  // unlike that of the products before and after
  bool take_turns;
  bool f32;
};

// Which units a team of peers owns.
struct Shares {
  int64_t units, teams, step;

  __device__ explicit Shares(const Job& job, int peers)
      : units(job.units), teams(int(gridDim.x) / peers), step(job.share_step) {}
  __device__ int begin(int team) const { return int(team * (units / step) / teams * step); }
  __device__ int owner(int unit) const { return int(((unit + 1) * teams - 1) / units); }  // where step is 1
};

struct Barriers {
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
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
  int peer;
  uint64_t policy = ptx::evict_first_policy();

  // Where a unit's boxes lie in w. Counted up, since divisions would cost more than all else here.
  struct Cursor {
    int k, column, row;
  };
  __device__ Cursor at(int unit) const {
    const int tile = unit / job.tile_units, k = unit - tile * job.tile_units;
    return {k, k * S::kDepth, (tile * S::kPeers + peer) * job.tile};
  }
  __device__ void next(Cursor& c) const {
    c.column += S::kDepth;
    if (++c.k == job.tile_units) c = {0, 0, c.row + S::kPeers * job.tile};
  }

  __device__ void load_weights(int slot, const Cursor& c) const {
    uint64_t* full = &ring.barriers->full[slot];
    ptx::barrier_expect_bytes(full, uint32_t(ring.stage_bytes()));
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box)
      ptx::copy_box(ring.weights(slot, box), weights, full, c.column + box * kBox, c.row, policy);
  }
  __device__ void load_inputs(int slot, const Cursor& c) const {
    constexpr int kShare = S::kRows / S::kPeers;
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      uint8_t* to = ring.inputs(slot, box) + peer * kShare * kRowBytes;
      uint64_t* full = &ring.barriers->full[slot];
      if constexpr (S::kPeers == 1)
        ptx::copy_box(to, inputs, full, c.column + box * kBox, 0);
      else
        ptx::copy_box_to_cluster(to, inputs, full, c.column + box * kBox, peer * kShare, (1 << S::kPeers) - 1);
    }
  }

  // Waits until the blocks of earlier products on this multiprocessor have asked for all their weights. Then
  // this block's first stages arrive right behind theirs and keep the memory busy while they multiply, join,
  // store and end. Asked for sooner, the stages would only slow those blocks; later, the memory would be idle.
  __device__ Turn* wait_for_turn() const {
    unsigned multiprocessor;
    asm("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    Turn* turn = &job.turns[multiprocessor];
    const unsigned before = atomicAdd(&turn->came, 1);
    if (atomicExch(&turn->product, job.product) !=
        job.product)  // blocks of one product do not wait for each other
      while (int(*static_cast<volatile unsigned*>(&turn->asked) - before) < 0) __nanosleep(20);
    return turn;
  }

  __device__ void run(int begin, int end) const {
    const int head = min(end - begin, job.stages);
    const Cursor first = at(begin);
    Turn* turn = job.take_turns ? wait_for_turn() : nullptr;
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

    if (turn) atomicAdd(&turn->asked, 1);
  }
};

// The warpgroups that multiply.
template <typename S>
struct Consumer {
  const Job& job;
  const Shares shares;
  const Ring<S> ring;
  const int team, peer;
  const int thread = int(threadIdx.x);
  const int group = thread / 128;
  int votes = 0;

  float sums[S::kChains][S::kBlocks][S::kSums];

  __device__ void multiply(int slot) {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const uint64_t x = ptx::swizzled_factor(ptx::shared_address(ring.inputs(slot, box)));
      const uint32_t rows =
          ptx::shared_address(ring.weights(slot, box)) + uint32_t(group * S::kBlocks * 64 * kRowBytes);
#pragma unroll
      for (int piece = 0; piece < kBox / 16; ++piece)
#pragma unroll
        for (int block = 0; block < S::kBlocks; ++block) {
          const uint64_t w = ptx::swizzled_factor(rows + block * 64 * kRowBytes);
          ptx::wgmma<S::kRows>(sums[piece % S::kChains][block], w + piece * ptx::kPieceStep,
                               x + piece * ptx::kPieceStep);
        }
    }
  }
  __device__ void release(int slot) const {
    if (thread % 32 != 0) return;
    ptx::barrier_arrive(&ring.barriers->empty[slot]);
#pragma unroll
    for (int other = 1; other < S::kPeers; ++other)
      ptx::barrier_arrive_at(&ring.barriers->empty[slot], (peer + other) % S::kPeers);
  }
  __device__ void wait_for_each_other() const {
    asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers) : "memory");
  }

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
        for (auto& block : chain)
#pragma unroll
          for (float& sum : block) sum = 0;
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
      for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
        for (int i = 0; i < S::kSums; ++i) sums[0][b][i] += sums[chain][b][i];
  }

  // A team has at most two partial tiles: one that it did not begin, and one that it began.
  __device__ float4* part(int of_team, bool began) const {
    constexpr int64_t kFloats = int64_t(S::kTile) * S::kRows;
    return reinterpret_cast<float4*>(job.parts + (int64_t(of_team * S::kPeers + peer) * 2 + began) * kFloats) +
           thread;
  }
  // A tile whose columns several teams share out, from `first` to `last`.
  struct Joint {
    int first, last, tile;
    int arrived;  // teams, when thread 0 looked
  };
  __device__ int* arrivals(const Joint& j) const { return &job.arrived[j.tile * S::kPeers + peer]; }
  __device__ int peek(const Joint& j) const {
    return thread == 0 ? *static_cast<const volatile int*>(arrivals(j)) : 0;
  }
  // True: all parts are there, and sums[0] is their sum, in the order of k. Else this team's part was left for
  // the last.
  __device__ bool join(const Joint& j) {
    const int first = j.first, last = j.last;
    if (!all_others_arrived(j)) {
      leave_part(part(team, team == first));
      if (!arrive_last(j)) return false;
    }
    if (team > first) add_parts_before(first);
    for (int from = team + 1; from <= last; ++from) {
      const float4* theirs = part(from, false);
#pragma unroll
      for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
        for (int i = 0; i < S::kSums; i += 4) {
          const float4 v = __ldcg(theirs + (b * S::kSums + i) / 4 * S::kConsumers);
          sums[0][b][i] += v.x, sums[0][b][i + 1] += v.y, sums[0][b][i + 2] += v.z, sums[0][b][i + 3] += v.w;
        }
    }
    return true;
  }
  // Mostly a team finds the others' parts there already, since a team's first tile is the other's last; so it
  // looks (while its last stage is under way) before it writes.
  __device__ bool all_others_arrived(const Joint& j) {
    const bool all = thread == 0 && j.arrived == j.last - j.first;
    if (all) *arrivals(j) = 0;  // for the next product
    if (thread == 0) __threadfence();
    return first_thread_says(all);
  }
  __device__ void leave_part(float4* mine) const {
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < S::kSums; i += 4)
        __stcg(mine + (b * S::kSums + i) / 4 * S::kConsumers,
               make_float4(sums[0][b][i], sums[0][b][i + 1], sums[0][b][i + 2], sums[0][b][i + 3]));
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
    constexpr int kChunk = S::kSums < 32 ? S::kSums : 32;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < S::kSums; i += kChunk) {
        float before[kChunk] = {};
        for (int from = first; from < team; ++from) {
          const float4* theirs = part(from, from == first);
#pragma unroll
          for (int e = 0; e < kChunk; e += 4) {
            const float4 v = __ldcg(theirs + (b * S::kSums + i + e) / 4 * S::kConsumers);
            before[e] += v.x, before[e + 1] += v.y, before[e + 2] += v.z, before[e + 3] += v.w;
          }
        }
#pragma unroll
        for (int e = 0; e < kChunk; ++e) sums[0][b][i + e] += before[e];
      }
  }

  template <typename Out>
  __device__ void store_as(int tile, Out* out) const {
    const int warp = thread % 128 / 32, lane = thread % 32;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row_of_tile = (group * S::kBlocks + b) * 64 + warp * 16 + lane / 4 + half * 8;
        const int column = (tile * S::kPeers + peer) * job.tile + row_of_tile;
        if (row_of_tile >= job.tile || column >= job.n) continue;
        const float bias = job.bias ? job.bias[column] : 0;
#pragma unroll
        for (int i = half * 2; i < S::kSums; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int row = i / 4 * 8 + lane % 4 * 2 + e;
            if (row < job.m) out[row * job.out_stride + column] = Out(sums[0][b][i + e] + bias);
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
__global__ void __launch_bounds__(S::kThreads, 1)
    stream_gemm_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap inputs,
                       const __grid_constant__ Job job) {
  extern __shared__ uint8_t shared[];
  Ring<S> ring;
  ring.tile = job.tile;
  ring.barriers = reinterpret_cast<Barriers*>(shared);
  ring.stages = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared) + sizeof(Barriers) + 1023) &
                                           ~uintptr_t(1023));

  let_next_start();
  if (threadIdx.x == S::kConsumers) {
    ptx::prefetch_map(&weights);
    ptx::prefetch_map(&inputs);
  }
  if (threadIdx.x < unsigned(job.stages)) {
    ptx::barrier_init(&ring.barriers->full[threadIdx.x], 1);
    ptx::barrier_init(&ring.barriers->empty[threadIdx.x], S::kConsumers / 32 * S::kPeers);
    ptx::barrier_init_fence();
  }
  if constexpr (S::kPeers == 1)
    __syncthreads();
  else
    ptx::cluster_sync();

  const int team = int(blockIdx.x) / S::kPeers, peer = int(blockIdx.x) % S::kPeers;
  const Shares shares(job, S::kPeers);
  const int begin = shares.begin(team), end = shares.begin(team + 1);
  if (threadIdx.x >= S::kConsumers) {
    if (threadIdx.x == S::kConsumers) Producer<S>{&weights, &inputs, job, ring, peer}.run(begin, end);
  } else {
    wait_for_previous();
    Consumer<S>{job, shares, ring, team, peer}.run(begin, end);
  }
  if constexpr (S::kPeers > 1) ptx::cluster_sync();  // a peer may still write or arrive here
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Job);
struct Instance {
  int rows, tile, depth, peers, threads;
  Kernel kernel;
};
template <int kRows, int kBlocks, int kGroups, int kBoxes, int kPeers>
Instance instance() {
  using S = Shape<kRows, kBlocks, kGroups, kBoxes, kPeers>;
  return {S::kRows, S::kTile, S::kDepth, S::kPeers, S::kThreads, stream_gemm_kernel<S>};
}
std::span<const Instance> instances();

// The one with the smallest tile that suffices.
const Instance* find(const StreamConfig& c) {
  const Instance* found = nullptr;
  for (const Instance& i : instances())
    if (i.rows == c.rows && i.tile >= c.tile && i.depth == c.depth && i.peers == c.peers &&
        (!found || i.tile < found->tile))
      found = &i;
  return found;
}

}  // namespace

bool stream_gemm_supports(const StreamConfig& c) {
  return find(c) && c.tile > 0 && c.tile % 8 == 0 && c.stages >= 2 && c.stages <= kMaxStages;
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
  return kMaxTiles * sizeof(int) + kMaxMultiprocessors * sizeof(Turn) +
         size_t(multiprocessors) * 2 * kMaxPartFloats * sizeof(float);
}

void stream_gemm(const Context& context, const LinearArgs& a, const void* weights, const StreamConfig& config,
                 void* workspace) {
  const Instance* instance = find(config);
  const int64_t m = a.x.rows, n = a.out.cols, k = a.x.cols;
  CHECK(instance && stream_gemm_supports(config) && stream_gemm_supports(a));
  CHECK(m <= config.rows && a.out.rows == m && a.w.rows == n && a.w.cols == k);
  const int64_t team_tile = int64_t(config.tile) * config.peers, tiles = (n + team_tile - 1) / team_tile;
  const int64_t tile_units = (k + config.depth - 1) / config.depth;
  CHECK(tiles * config.peers <= kMaxTiles && tiles * tile_units < int64_t(1) << 31);
  CHECK(instance->tile * config.rows <= kMaxPartFloats);

  Job job{};
  job.out = a.out.data;
  job.out_stride = a.out.stride;
  job.bias = a.bias;
  job.arrived = static_cast<int*>(workspace);
  job.turns = reinterpret_cast<Turn*>(job.arrived + kMaxTiles);
  job.parts = reinterpret_cast<float*>(job.turns + kMaxMultiprocessors);
  job.m = int(m);
  job.n = int(n);
  job.tile = config.tile;
  job.tile_units = int(tile_units);
  job.units = int(tiles * tile_units);
  job.share_step = config.whole_tiles ? job.tile_units : 1;
  job.stages = config.stages;
  static std::atomic<unsigned> products = 0;
  job.product = ++products;
  // Peers wait for one another, so they cannot wait for their turns as well.
  job.take_turns = config.take_turns && config.peers == 1;
  job.f32 = a.out.dtype == DType::f32;
  const CUtensorMap weight_map = tensor_map_bf16(weights, n, k, k, config.tile, kBox, 128, 128);
  const CUtensorMap input_map =
      tensor_map_bf16(a.x.data, m, k, a.x.stride, config.rows / config.peers, kBox, 128);
  const int64_t teams = std::min<int64_t>(job.units / job.share_step, context.multiprocessors / config.peers);
  launch_clusters(context, instance->kernel, unsigned(config.peers), dim3(unsigned(teams * config.peers)),
                  dim3(unsigned(instance->threads)), size_t(stream_shared_bytes(config, instance->tile)),
                  weight_map, input_map, job);
}

namespace {

// What exists. Rows of x, 64-row blocks per warpgroup, warpgroups, boxes per stage, peers.
std::span<const Instance> instances() {
  static const Instance list[] = {
      instance<8, 1, 1, 1, 1>(),   instance<8, 1, 1, 2, 1>(),   instance<8, 2, 1, 1, 1>(),
      instance<8, 2, 1, 2, 1>(),   instance<16, 1, 1, 1, 1>(),  instance<16, 1, 1, 2, 1>(),
      instance<16, 2, 1, 1, 1>(),  instance<16, 1, 1, 2, 2>(),  instance<32, 2, 1, 1, 1>(),
      instance<32, 2, 1, 1, 2>(),  instance<64, 2, 1, 1, 1>(),  instance<64, 2, 1, 1, 2>(),
      instance<64, 2, 2, 1, 1>(),  instance<128, 1, 2, 1, 1>(), instance<128, 1, 2, 1, 2>(),
      instance<128, 2, 2, 1, 1>(),
  };
  return list;
}

}  // namespace
}  // namespace sluice::cuda
