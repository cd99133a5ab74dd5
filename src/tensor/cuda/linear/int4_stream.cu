#include "tensor/cuda/linear/int4_stream.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <span>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/linear/int4_decode.h"
#include "tensor/cuda/ptx/bulk_copy.h"
#include "tensor/cuda/ptx/cluster.h"
#include "tensor/cuda/ptx/copy_async.h"
#include "tensor/cuda/ptx/load.h"
#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {
namespace {

constexpr int kMaxSharedBytes = 227 * 1024;  // of a block of sm_90

struct Job {
  void* out;
  int64_t out_stride;
  const float* bias;  // or null
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* weights;
  int panels, blocks;  // blocks of a panel
  int m, n, k;
  int tiles;
  int units;                                          // stages along k
  int stage_blocks, stages, stage_bytes, panel_step;  // bytes from panel to panel of a stage
  int warp_rows, slices, cluster;
  int x_pitch;     // bytes from row to row of x in shared memory
  int part_bytes;  // of one tile's parts
  bool two_parts, f32;
};

// Where the share number `of` of `all` shares begins.
__device__ __forceinline__ int share(int units, int of, int all) {
  return int(unsigned(units) * unsigned(of) / unsigned(all));
}

// What one kernel is compiled for: x's rows, panels that a warp works on at a time, columns of a group.
template <int kEights_, int kPanels_, int kGroup_>
struct Shape {
  static constexpr int kEights = kEights_, kPanels = kPanels_, kGroup = kGroup_;
  static constexpr Int4Layout kLayout{0, 0, kGroup};
  static constexpr int kPieces = kLayout.block_cols() / 32, kGroupPieces = kGroup / 32;  // of 32 columns
  static constexpr int kMostWarps = int4_most_warps(kEights * 8, kPanels);
};

template <typename S>
struct Warp {
  const Job& job;
  uint64_t* full;   // [stages]
  uint8_t* ring;    // [stages][stage_bytes]
  uint8_t* inputs;  // x: the block's columns
  uint8_t* parts;   // [1 or 2][part_bytes]

  static constexpr int kBlockCols = S::kLayout.block_cols(), kBlockBytes = S::kLayout.block_bytes();

  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int rank = job.cluster > 1 ? int(ptx::cluster_rank()) : 0;
  const int first_tile = int(blockIdx.x) / job.cluster, tile_step = int(gridDim.x) / job.cluster;
  // Warps are numbered along n first.
  const int row_of_warps = warp % job.warp_rows;
  const int slice = rank * job.slices + warp / job.warp_rows, all_slices = job.slices * job.cluster;
  const int begin = share(job.units, slice, all_slices), end = share(job.units, slice + 1, all_slices);
  const int block_begin = share(job.units, rank, job.cluster),
            block_end = share(job.units, rank + 1, job.cluster);

  float totals[S::kPanels][S::kEights][4];
  float inner[S::kPanels][S::kEights][4];  // of the group at hand
  float ones[S::kEights][4];               // sums of x over the group

  __device__ int tile_panels() const { return S::kPanels * job.warp_rows; }

  // The copies of a warp, in order: one for each panel, asked for by as many lanes.
  struct Ahead {
    int tile, unit, slot;
    uint64_t policy;
  };
  __device__ void ask(Ahead& a) const {
    if (a.tile >= job.tiles || begin == end) return;
    const int first = (a.tile * job.warp_rows + row_of_warps) * S::kPanels, block = a.unit * job.stage_blocks;
    const int panels =
        min(S::kPanels, job.panels - first);  // none, perhaps: then what lies there is multiplied
    const int bytes = min(job.stage_blocks, job.blocks - block) * kBlockBytes;
    if (lane == 0) ptx::barrier_expect_bytes(&full[a.slot], uint32_t(max(0, panels) * bytes));
    if (lane < panels)
      ptx::copy_bulk(ring + a.slot * job.stage_bytes + lane * job.panel_step,
                     job.weights + (int64_t(first + lane) * job.blocks + block) * kBlockBytes, uint32_t(bytes),
                     &full[a.slot], a.policy);
    if (++a.slot == job.stages) a.slot = 0;
    if (++a.unit == end) a.unit = begin, a.tile += tile_step;
  }

  __device__ void run() {
    Ahead ahead{first_tile, begin, 0, ptx::evict_first_policy()};
    // One stage before x is asked for, the others behind it: what is asked for later comes later.
    ask(ahead);
    wait_for_previous();
    ask_inputs();
    for (int i = 1; i < job.stages; ++i) ask(ahead);
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (job.cluster > 1) ptx::cluster_wait();  // all blocks run, before any writes into another

    int slot = 0, turn = 0;
    uint32_t round = 0;
    for (int tile = first_tile; tile < job.tiles; tile += tile_step) {
      clear(totals);
      for (int unit = begin; unit < end; ++unit) {
        ptx::barrier_wait(&full[slot], round);
        multiply(ring + slot * job.stage_bytes, unit);
        __syncwarp();
        ask(ahead);
        if (++slot == job.stages) slot = 0, round ^= 1;
      }
      uint8_t* at = parts + (job.two_parts ? turn * job.part_bytes : 0);
      leave_parts(at);
      if (job.cluster > 1)
        ptx::cluster_sync();
      else
        __syncthreads();
      store(tile, at);
      turn ^= 1;
    }
  }

  // By threads, not by the copy engine, where x would queue behind the weights. Rows beyond m are never read:
  // multiply() takes the last one instead.
  __device__ void ask_inputs() const {
    const int first = block_begin * job.stage_blocks * kBlockCols;
    const int last = min(job.k, block_end * job.stage_blocks * kBlockCols);
    const int vectors = (last - first) / 8;
    for (int row = 0; row < job.m; ++row) {
      const auto* from = reinterpret_cast<const uint4*>(job.x + row * job.x_stride + first);
      const uint32_t to = ptx::shared_address(inputs) + row * job.x_pitch;
      for (int v = int(threadIdx.x); v < vectors; v += int(blockDim.x))
        ptx::copy_async_16(to + v * 16, from + v, true);
    }
    ptx::copy_async_commit();
  }

  template <int kA, int kB>
  __device__ static void clear(float (&sums)[kA][kB][4]) {
#pragma unroll
    for (auto& a : sums)
#pragma unroll
      for (auto& b : a)
#pragma unroll
        for (float& v : b) v = 0;
  }

  // What 32 columns take: of each panel a lane's two words, of x two operands for each eight rows.
  struct Piece {
    uint2 words[S::kPanels];
    uint32_t b[S::kEights][4];
  };
  struct Source {  // addresses in shared memory
    uint32_t words[S::kPanels], x[S::kEights];
  };
  __device__ static void load(Piece& piece, const Source& from, int at) {
#pragma unroll
    for (int r = 0; r < S::kPanels; ++r) piece.words[r] = ptx::load_shared_8(from.words[r] + at * 256);
#pragma unroll
    for (int n = 0; n < S::kEights; ++n) ptx::load_matrix_x4(piece.b[n], from.x[n] + at * 64);
  }

  __device__ void multiply(const uint8_t* stage, int unit) {
    const int blocks = min(job.stage_blocks, job.blocks - unit * job.stage_blocks);
    Source source;
#pragma unroll
    for (int r = 0; r < S::kPanels; ++r)
      source.words[r] = ptx::shared_address(stage) + r * job.panel_step + lane * 8;
    // Lane 8 i + r names row r of the i-th 8 columns.
    const uint32_t x =
        ptx::shared_address(inputs) + (unit - block_begin) * job.stage_blocks * kBlockCols * 2 + lane / 8 * 16;
#pragma unroll
    for (int n = 0; n < S::kEights; ++n) source.x[n] = x + min(n * 8 + lane % 8, job.m - 1) * job.x_pitch;
    for (int block = 0; block < blocks; ++block) {
      multiply_block(source);
#pragma unroll
      for (uint32_t& w : source.words) w += kBlockBytes;
#pragma unroll
      for (uint32_t& row : source.x) row += kBlockCols * 2;
    }
  }

  // The next piece is loaded while one is multiplied.
  __device__ void multiply_block(const Source& source) {
    Piece pieces[2];
    load(pieces[0], source, 0);
#pragma unroll
    for (int p = 0; p < S::kPieces; ++p) {
      if (p + 1 < S::kPieces) load(pieces[(p + 1) % 2], source, p + 1);
      const bool last = p % S::kGroupPieces == S::kGroupPieces - 1;
      uint32_t pairs[S::kPanels][2];
      if (last) load_scales(pairs, source, p / S::kGroupPieces);
      if (p % S::kGroupPieces == 0)
        multiply<true>(pieces[p % 2]);
      else
        multiply<false>(pieces[p % 2]);
      if (last) end_group(pairs);
    }
  }

  template <bool kAfresh>
  __device__ static void product(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kAfresh)
      ptx::mma_16x8x16_afresh(sums, a, b0, b1);
    else
      ptx::mma_16x8x16(sums, a, b0, b1);
  }
  template <bool kFirst>
  __device__ void multiply(const Piece& piece) {
    step<kFirst, 0>(piece);
    step<false, 1>(piece);
  }
  template <bool kAfresh, int kStep>
  __device__ void step(const Piece& piece) {
    constexpr uint32_t kOne = 0x3f803f80;  // 1, twice
    constexpr uint32_t kOnes[4] = {kOne, kOne, kOne, kOne};
#pragma unroll
    for (int n = 0; n < S::kEights; ++n)
      product<kAfresh>(ones[n], kOnes, piece.b[n][2 * kStep], piece.b[n][2 * kStep + 1]);
#pragma unroll
    for (int r = 0; r < S::kPanels; ++r) {
      uint32_t a[4];
      int4_to_bf16(kStep ? piece.words[r].y : piece.words[r].x, a);
#pragma unroll
      for (int n = 0; n < S::kEights; ++n)
        product<kAfresh>(inner[r][n], a, piece.b[n][2 * kStep], piece.b[n][2 * kStep + 1]);
    }
  }

  __device__ void load_scales(uint32_t (&pairs)[S::kPanels][2], const Source& source, int group) const {
#pragma unroll
    for (int r = 0; r < S::kPanels; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        pairs[r][half] =
            ptx::load_shared_4(source.words[r] - lane * 8 + lane / 4 * 4 + S::kLayout.scales_offset() +
                               (group * kPanelRows + half * (kPanelRows / 2)) * 4);
  }
  __device__ void end_group(const uint32_t (&pairs)[S::kPanels][2]) {
#pragma unroll
    for (int r = 0; r < S::kPanels; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 sz = __half22float2(*reinterpret_cast<const __half2*>(&pairs[r][half]));
        const float offset = kInt4Offset + sz.y;
#pragma unroll
        for (int n = 0; n < S::kEights; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            totals[r][n][2 * half + e] += sz.x * fmaf(-offset, ones[n][e], inner[r][n][2 * half + e]);
      }
  }

  // A part: [slice of k][panel of the owner][eight][lane] x four sums.
  __device__ int part_at(int of_slice, int panel, int eight, int of_lane) const {
    const int own_panels = tile_panels() / job.cluster;
    return (((of_slice * own_panels + panel) * S::kEights + eight) * 32 + of_lane) * 16;
  }
  __device__ void leave_parts(uint8_t* at) const {
    const int own_panels = tile_panels() / job.cluster;
#pragma unroll
    for (int r = 0; r < S::kPanels; ++r) {
      const int panel = row_of_warps * S::kPanels + r, owner = job.cluster > 1 ? panel / own_panels : 0;
#pragma unroll
      for (int n = 0; n < S::kEights; ++n) {
        const float4 v = make_float4(totals[r][n][0], totals[r][n][1], totals[r][n][2], totals[r][n][3]);
        uint8_t* to = at + part_at(slice, panel - owner * own_panels, n, lane);
        if (job.cluster > 1)
          ptx::store_in_cluster(ptx::address_in(ptx::shared_address(to), uint32_t(owner)), v);
        else
          *reinterpret_cast<float4*>(to) = v;
      }
    }
  }

  __device__ void store(int tile, const uint8_t* at) const {
    const int own_panels = tile_panels() / job.cluster, rows = own_panels * kPanelRows;
    const int first_panel = tile * tile_panels() + rank * own_panels;
    const int slice_bytes = part_at(1, 0, 0, 0);
    for (int i = int(threadIdx.x); i < rows * job.m; i += int(blockDim.x)) {
      const int m = i / rows, row = i - m * rows, in_panel = row % kPanelRows;
      const int column = first_panel * kPanelRows + row;
      if (column >= job.n) continue;
      const int element = in_panel / 8 * 2 + m % 2;
      const uint8_t* from =
          at + part_at(0, row / kPanelRows, m / 8, in_panel % 8 * 4 + m % 8 / 2) + element * 4;
      float sum = 0;
#pragma unroll 8
      for (int s = 0; s < all_slices; ++s) sum += *reinterpret_cast<const float*>(from + s * slice_bytes);
      sum = sum * (1 / kInt4ScaleUp) + (job.bias ? job.bias[column] : 0);
      if (job.f32)
        static_cast<float*>(job.out)[m * job.out_stride + column] = sum;
      else
        static_cast<__nv_bfloat16*>(job.out)[m * job.out_stride + column] = __float2bfloat16_rn(sum);
    }
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kMostWarps * 32, 1) int4_stream_kernel(const __grid_constant__ Job job) {
  extern __shared__ uint8_t shared[];
  auto* base = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared) + 127) & ~uintptr_t(127));
  let_next_start();
  auto* barriers = reinterpret_cast<uint64_t*>(base);
  uint64_t* full = barriers + threadIdx.x / 32 * kMostInt4Stages;
  if (int(threadIdx.x) % 32 < job.stages) {
    ptx::barrier_init(&full[threadIdx.x % 32], 1);
    ptx::barrier_init_fence();
  }
  if (job.cluster > 1) ptx::cluster_arrive();
  __syncwarp();
  uint8_t* ring = base + kInt4BarrierBytes;  // of all warps; then parts, then x
  const int warps = job.warp_rows * job.slices;
  uint8_t* parts = ring + warps * job.stages * job.stage_bytes;
  uint8_t* inputs = parts + job.part_bytes * (job.two_parts ? 2 : 1);
  Warp<S>{job, full, ring + threadIdx.x / 32 * job.stages * job.stage_bytes, inputs, parts}.run();
}

using Kernel = void (*)(Job);
struct Instance {
  int rows, panels, group;
  Kernel kernel;
};
template <int kRows, int kPanels, int kGroup>
Instance instance() {
  return {kRows, kPanels, kGroup, int4_stream_kernel<Shape<kRows / 8, kPanels, kGroup>>};
}
std::span<const Instance> instances();

const Instance* find(const Int4StreamConfig& c, int group) {
  for (const Instance& i : instances())
    if (i.rows == c.rows && i.panels == c.panels && i.group == group) return &i;
  return nullptr;
}

}  // namespace

bool int4_stream_supports(const Int4StreamConfig& c, int group) {
  return find(c, group) && c.warp_rows > 0 && c.slices > 0 && c.warps() <= int4_most_warps(c.rows, c.panels) &&
         c.cluster > 0 && c.cluster <= 8 && c.tile_panels() % c.cluster == 0 && c.stage_blocks > 0 &&
         c.stages >= 1 && c.stages <= kMostInt4Stages;
}
bool int4_stream_supports(const LinearArgs& a) {
  return a.x.rows > 0 && a.x.rows <= kMostInt4StreamRows && a.x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && a.x.dtype == DType::bf16 &&
         (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32);
}

void int4_stream_prepare() {
  for (const Instance& i : instances())
    CUDA_CHECK(cudaFuncSetAttribute(i.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
}

void int4_stream(const Context& context, const LinearArgs& a, const void* weights, const Int4Layout& layout,
                 const Int4StreamConfig& config) {
  const Instance* instance = find(config, layout.group);
  const int64_t m = a.x.rows, n = a.out.cols, k = a.x.cols;
  CHECK(instance && int4_stream_supports(config, layout.group) && int4_stream_supports(a));
  CHECK(m <= config.rows && a.out.rows == m && layout.rows == n && layout.cols == k &&
        k % layout.block_cols() == 0);
  const Int4Shape shape{m, n, k, layout.group};
  const auto up = [](int64_t x, int64_t by) { return (x + by - 1) / by; };

  Job job{};
  job.out = a.out.data;
  job.out_stride = a.out.stride;
  job.bias = a.bias;
  job.x = static_cast<const __nv_bfloat16*>(a.x.data);
  job.x_stride = a.x.stride;
  job.m = int(m), job.n = int(n), job.k = int(k);
  job.weights = static_cast<const uint8_t*>(weights);
  job.panels = int(layout.panels()), job.blocks = int(layout.blocks());
  job.tiles = int(up(layout.panels(), config.tile_panels()));
  job.units = int(up(layout.blocks(), config.stage_blocks));
  job.stage_blocks = config.stage_blocks;
  job.stages = config.stages;
  job.panel_step = config.stage_blocks * layout.block_bytes();
  job.stage_bytes = int(int4_stage_bytes(config, shape));
  job.warp_rows = config.warp_rows;
  job.slices = config.slices;
  job.cluster = config.cluster;
  // Rows 16 bytes further in the banks each: a matrix of 8 rows is read without conflicts.
  job.x_pitch =
      int(up(up(job.units, config.cluster) * config.stage_blocks * layout.block_cols() * 2, 128) * 128 + 16);
  job.part_bytes = int(int4_part_bytes(config));
  const int64_t clusters = int4_stream_clusters(config, shape, context.multiprocessors);
  job.two_parts = job.tiles > clusters;
  job.f32 = a.out.dtype == DType::f32;
  const int64_t shared = int4_shared_bytes(config, shape, context.multiprocessors);
  CHECK(shared <= kMaxSharedBytes);
  launch_clusters(context, instance->kernel, unsigned(config.cluster),
                  dim3(unsigned(clusters * config.cluster)), dim3(unsigned(config.warps() * 32)),
                  size_t(shared), job);
}

namespace {

// What exists: x's rows, panels of a warp, columns of a group.
std::span<const Instance> instances() {
  static const Instance list[] = {
      instance<8, 2, 32>(),  instance<8, 3, 32>(),   instance<8, 4, 32>(),   instance<8, 2, 64>(),
      instance<8, 3, 64>(),  instance<8, 4, 64>(),   instance<8, 2, 128>(),  instance<8, 3, 128>(),
      instance<8, 4, 128>(), instance<16, 2, 32>(),  instance<16, 3, 32>(),  instance<16, 2, 64>(),
      instance<16, 3, 64>(), instance<16, 2, 128>(), instance<16, 3, 128>(),
  };
  return list;
}

}  // namespace
}  // namespace sluice::cuda
