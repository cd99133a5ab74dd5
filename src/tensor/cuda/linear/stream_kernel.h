// The streaming product's kernel (stream_gemm.h says what it does): one text for every type of factors. A file
// that includes it instantiates stream_gemm_kernel and launches it by a Job.
//
// Eight-bit factors come with scales: a value is scale * element. Per channel, a row of w and a row of x have
// one each, and a result is multiplied by both at the end. In blocks, 128 x 128 elements of w share one and 128
// columns of a row of x, so every 128 columns' sums are multiplied by both.
#pragma once

#include <cuda_bf16.h>

#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/linear/stream_job.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/load.h"
#include "tensor/cuda/ptx/wgmma.h"
#include "tensor/cuda/ptx/wgmma_8bit.h"
#include "tensor/cuda/ptx/wgmma_attention.h"

namespace sluice::cuda {
namespace {

// One thread. Weights may be read before the kernel before is done (they do not change after load), x may not.
// What is asked for later comes later: with all of the ring's weights asked for first, x comes when the ring is
// full, and memory then waits for the first stage's products. So only early_stages go before it.
template <typename S>
struct Producer {
  const CUtensorMap *weights, *inputs;
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
      ptx::copy_box(ring.weights(slot, 0), weights, full, c.k * kBoxPairs, c.row, policy);
    else
      ptx::copy_boxes(ring.weights(slot, 0), weights, full, c.k * S::kBoxes, c.row, policy);
  }
  __device__ void load_inputs(int slot, const Cursor& c) const {
    uint64_t* full = &ring.barriers->full[slot];
    if constexpr (S::kBoxes == 1)
      ptx::copy_box(ring.inputs(slot, 0), inputs, full, c.k * kBoxPairs, 0);
    else
      ptx::copy_boxes(ring.inputs(slot, 0), inputs, full, c.k * S::kBoxes, 0);
  }

  __device__ void run(int begin, int end) const {
    const int head = min(end - begin, job.stages), early = min(head, job.early_stages);
    const Cursor first = at(begin);
    Cursor cursor = first;
    for (int i = 0; i < early; ++i, next(cursor)) load_weights(i, cursor);
    wait_for_previous();
    Cursor input = first;
    for (int i = 0; i < early; ++i, next(input)) load_inputs(i, input);
    for (int i = early; i < head; ++i, next(cursor)) load_weights(i, cursor), load_inputs(i, cursor);
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

  typename S::Sum chains[S::kChains][S::kSums];
  float sums[S::kSums];                 // of a tile
  float w_scale[2], bias[2];            // of a tile, for the two rows of w
  float x_scale[S::kInputScales] = {};  // where they are kept

  // `more`: beside what the chains have; of fp8 else they begin anew.
  __device__ void multiply(int slot, bool more) {
    constexpr int kPieces = 4;  // 32 bytes of a box
    const int group = S::kGroups == 1 ? 0 : thread / 128;
    if constexpr (S::kFp8) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
        for (int box = 0; box < S::kBoxes; ++box)
          ptx::wgmma_e4m3(chains[box], weights(slot, box, group) + piece * ptx::kPieceStep,
                          inputs(slot, box) + piece * ptx::kPieceStep, piece > 0 || more);
    } else {
#pragma unroll
      for (int box = 0; box < S::kBoxes; ++box)
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          auto& chain = chains[piece % S::kChains];
          const uint64_t w = weights(slot, box, group) + piece * ptx::kPieceStep,
                         x = inputs(slot, box) + piece * ptx::kPieceStep;
          if constexpr (S::kFactors == Factors::int8)
            ptx::wgmma_s8(chain, w, x, true);
          else
            ptx::wgmma<S::kRows>(chain, w, x);
        }
    }
  }
  __device__ uint64_t weights(int slot, int box, int group) const {
    return ptx::swizzled_factor(ptx::shared_address(ring.weights(slot, box)) + group * 64 * kRowBytes);
  }
  __device__ uint64_t inputs(int slot, int box) const {
    return ptx::swizzled_factor(ptx::shared_address(ring.inputs(slot, box)));
  }

  // A thread's sums are of two rows of w, 8 apart, and of two columns (rows of x) in each eight.
  __device__ int row_of_tile(int half) const {
    return thread / 128 * 64 + thread / 32 % 4 * 16 + thread % 32 / 4 + half * 8;
  }
  __device__ int column_of(int sum) const { return sum / 4 * 8 + thread % 4 * 2 + sum % 2; }

  // Which of the scales of x that a thread has to do with is a sum's.
  static __device__ constexpr int input_of(int sum) { return sum / 4 * 2 + sum % 2; }
  __device__ float load_input_scale(const float* scales, int sum) const {
    return ptx::load_here(scales + min(column_of(sum), job.m - 1));  // what lies behind x's rows is dropped
  }

  // Scales and bias of a tile, on their way while its products are computed: loaded where they are used they
  // would cost a product 0.7 us at its end.
  static constexpr bool kScaled = S::kFactors == Factors::fp8 || S::kFactors == Factors::int8;
  __device__ void load_tile_scales(int tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = min(tile * job.tile + row_of_tile(half), job.n - 1);
      bias[half] = job.bias ? ptx::load_here(job.bias + column) : 0;
      if constexpr (kScaled) w_scale[half] = ptx::load_here(job.w_scales + column);
    }
  }
  __device__ void load_input_scales() {
    if constexpr (kScaled && S::kKeepsInputScales) {
#pragma unroll
      for (int sum = 0; sum < S::kSums; ++sum)
        if (sum % 4 < 2) x_scale[input_of(sum)] = load_input_scale(job.x_scales, sum);
    }
  }

  // The scales of a stage's blocks.
  struct BlockScales {
    float w[S::kBoxes][2], x[S::kBoxes][S::kInputScales];
  };
  __device__ void load_block_scales(int tile, int k, BlockScales& scales) const {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const int at = min(k * S::kBoxes + box, job.boxes - 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = min(tile * job.tile + row_of_tile(half), job.n - 1);
        scales.w[box][half] = ptx::load_here(job.w_scales + row / 128 * job.w_scale_stride + at);
      }
#pragma unroll
      for (int sum = 0; sum < S::kSums; ++sum)
        if (sum % 4 < 2)
          scales.x[box][input_of(sum)] = load_input_scale(job.x_scales + int64_t(at) * job.x_scale_stride, sum);
    }
  }

  __device__ void release(int slot) const {
    if (thread % 32 == 0) ptx::barrier_arrive(&ring.barriers->empty[slot]);
  }
  __device__ void wait_for_each_other() const {
    asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers) : "memory");
  }

  __device__ void run(int begin, int end) {
    load_input_scales();
    Place place;
    for (int unit = begin; unit < end;) {
      const int tile = unit / job.tile_units;
      const int count = min((tile + 1) * job.tile_units, end) - unit;
      const bool partial = count < job.tile_units;
      Joint joint;
      if (partial)
        joint = {shares.owner(tile * job.tile_units), shares.owner((tile + 1) * job.tile_units - 1), tile};

      load_tile_scales(tile);
      if constexpr (S::kBlocks)
        add_up_blocks(place, tile, unit - tile * job.tile_units, count, partial ? &joint : nullptr);
      else
        add_up(place, count, partial ? &joint : nullptr);
      if (!partial || join(joint)) store(tile);
      unit += count;
    }
  }

  // A tile whose columns several blocks share out, from `first` to `last`.
  struct Joint {
    int first, last, tile;
    int arrived;  // blocks, when thread 0 looked
  };
  // The next `count` stages' products, in `sums`. Where a joint is given, who else has arrived there is looked
  // up before the last.
  __device__ void add_up(Place& place, int count, Joint* joint) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    if constexpr (!S::kFp8)
#pragma unroll
      for (auto& chain : chains)
#pragma unroll
        for (auto& sum : chain) sum = 0;
    for (int i = 0; i < count;) {
      const int begin = i, end = S::kFp8 ? min(begin + S::kStagesTogether, count) : count;
      int before = 0;
      for (; i < end; ++i) {
        if (joint && i + 1 == count) joint->arrived = peek(*joint);
        ptx::barrier_wait(&ring.barriers->full[place.slot], place.round);
        ptx::wgmma_fence();
        multiply(place.slot, i > begin);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();  // the stage before was read to its end
        if (i > begin) release(before);
        before = place.slot;
        place.next(job.stages);
      }
      ptx::wgmma_wait<0>();
      release(before);
      add_chains();
    }
  }
  __device__ void add_chains() {
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) {
      auto sum = chains[0][i];
#pragma unroll
      for (int chain = 1; chain < S::kChains; ++chain) sum += chains[chain][i];
      sums[i] += float(sum);
    }
  }
  // `k`: where in the tile the first stage's columns lie. A stage's scales are on their way while the one
  // before is multiplied.
  __device__ void add_up_blocks(Place& place, int tile, int k, int count, Joint* joint) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    BlockScales next;
    load_block_scales(tile, k, next);
    for (int i = 0; i < count; ++i, ++k) {
      if (joint && i + 1 == count) joint->arrived = peek(*joint);
      const BlockScales scales = next;
      if (i + 1 < count) load_block_scales(tile, k + 1, next);
      ptx::barrier_wait(&ring.barriers->full[place.slot], place.round);
      ptx::wgmma_fence();
      multiply(place.slot, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      release(place.slot);
      place.next(job.stages);
#pragma unroll
      for (int box = 0; box < S::kBoxes; ++box)
#pragma unroll
        for (int sum = 0; sum < S::kSums; ++sum)
          sums[sum] += chains[box][sum] * (scales.w[box][sum / 2 % 2] * scales.x[box][input_of(sum)]);
    }
  }

  // A block has at most two partial tiles: one that it did not begin, and one that it began.
  __device__ float4* part(int of_block, bool began) const {
    return reinterpret_cast<float4*>(job.parts + (int64_t(of_block) * 2 + began) * (S::kTile * S::kRows)) +
           thread;
  }
  __device__ int* arrivals(const Joint& j) const { return &job.arrived[j.tile]; }
  __device__ int peek(const Joint& j) const {
    return thread == 0 ? *static_cast<const volatile int*>(arrivals(j)) : 0;
  }
  // True: all parts are there, and sums is their sum, in the order of k. Else this block's part was left for
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
        const float4 v = __ldcg(theirs + i / 4 * S::kConsumers);
        sums[i] += v.x, sums[i + 1] += v.y, sums[i + 2] += v.z, sums[i + 3] += v.w;
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
      __stcg(mine + i / 4 * S::kConsumers, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
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
        const float4 v = __ldcg(theirs + i / 4 * S::kConsumers);
        before[i] += v.x, before[i + 1] += v.y, before[i + 2] += v.z, before[i + 3] += v.w;
      }
    }
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) sums[i] += before[i];
  }

  template <typename Out>
  __device__ void store_as(int tile, Out* out) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_tile(half), column = tile * job.tile + row;
      if (row >= job.tile || column >= job.n) continue;
#pragma unroll
      for (int i = half * 2; i < S::kSums; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int to = column_of(i + e);
          if (to >= job.m) continue;
          float value = sums[i + e];
          if constexpr (kScaled)
            value *= w_scale[half] * (S::kKeepsInputScales ? x_scale[input_of(i + e)] : job.x_scales[to]);
          out[to * job.out_stride + column] = Out(value + bias[half]);
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
    ptx::barrier_init(&ring.barriers->empty[threadIdx.x], S::kConsumers / 32);
    ptx::barrier_init_fence();
  }
  __syncthreads();

  const Shares shares{job};
  const int begin = shares.begin(int(blockIdx.x)), end = shares.begin(int(blockIdx.x) + 1);
  if (threadIdx.x >= S::kConsumers) {
    if constexpr (S::kMovesRegisters) ptx::give_registers<40>();
    if (threadIdx.x == S::kConsumers) Producer<S>{&weights, &inputs, job, ring}.run(begin, end);
  } else {
    if constexpr (S::kMovesRegisters) ptx::take_registers<232>();
    wait_for_previous();
    Consumer<S>{job, shares, ring}.run(begin, end);
  }
}

using StreamKernel = void (*)(CUtensorMap, CUtensorMap, Job);

}  // namespace
}  // namespace sluice::cuda
