#include "tensor/cuda/experts/experts.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/experts/grouped_gemm.h"
#include "tensor/cuda/experts/routing.h"
#include "tensor/cuda/rows/rows.h"

namespace sluice::cuda {
namespace {

constexpr int kChooseWarps = 4, kPlaceThreads = 256, kSumThreads = 256;
constexpr int kLogitsPerLane = kMaxExperts / 32;

// The larger of two (logit, expert) pairs; equal ones go to the lower expert.
__device__ __forceinline__ bool better(float logit, int expert, float than, int that) {
  return logit > than || (logit == than && expert < that);
}

// A warp per row: K times the best expert that is left, and the weights. NaN logits choose what is left over:
// no number is better than -inf, and the highest experts go last.
__global__ void __launch_bounds__(kChooseWarps * 32)
    choose(const float* router, int64_t stride, int rows, Routing r, bool normalised) {
  let_next_start();
  wait_for_previous();
  const int lane = int(threadIdx.x) % 32, row = int(blockIdx.x) * kChooseWarps + int(threadIdx.x) / 32;
  if (row >= rows) return;
  float logits[kLogitsPerLane], all = 0, top = 0, chosen_sum = 0;
#pragma unroll
  for (int i = 0; i < kLogitsPerLane; ++i)
    logits[i] = i * 32 + lane < r.experts ? router[row * stride + i * 32 + lane] : -INFINITY;
  uint32_t taken = 0;
  const int64_t first = int64_t(row) * r.per_token;
  for (int k = 0; k < r.per_token; ++k) {
    float best = -INFINITY;
    int expert = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kLogitsPerLane; ++i)
      if (!(taken >> i & 1) && i * 32 + lane < r.experts && better(logits[i], i * 32 + lane, best, expert))
        best = logits[i], expert = i * 32 + lane;
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(~0u, best, apart);
      const int that = __shfl_xor_sync(~0u, expert, apart);
      if (better(other, that, best, expert)) best = other, expert = that;
    }
    expert = min(expert, r.experts - 1);
    if (expert % 32 == lane) taken |= 1u << expert / 32;
    if (k == 0) {
      top = best;
#pragma unroll
      for (int i = 0; i < kLogitsPerLane; ++i)
        if (i * 32 + lane < r.experts) all += expf(logits[i] - top);
      for (int apart = 16; apart > 0; apart /= 2) all += __shfl_xor_sync(~0u, all, apart);
    }
    const float weight = expf(best - top);
    chosen_sum += weight;
    if (lane == 0) r.expert[first + k] = expert, r.weight[first + k] = weight;
  }
  __syncwarp();
  const float sum = normalised ? chosen_sum : all;
  for (int k = lane; k < r.per_token; k += 32) r.weight[first + k] /= sum;
}

// A block per expert: how many choices fall to those before it, then the places of its own, in their order.
__global__ void __launch_bounds__(kPlaceThreads) place(Routing r) {
  constexpr int kWarps = kPlaceThreads / 32;
  __shared__ int counts[kWarps];
  let_next_start();
  wait_for_previous();
  const int expert = int(blockIdx.x), warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const auto sum_of_warps = [&] {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += counts[w];
    return sum;
  };
  int before = 0;
  for (int i = int(threadIdx.x); i < r.choices; i += kPlaceThreads) before += r.expert[i] < expert;
  for (int apart = 16; apart > 0; apart /= 2) before += __shfl_xor_sync(~0u, before, apart);
  if (lane == 0) counts[warp] = before;
  __syncthreads();
  int at = sum_of_warps();
  if (threadIdx.x == 0) {
    r.starts[expert] = at;
    if (expert + 1 == r.experts) r.starts[r.experts] = r.choices;
  }
  for (int base = 0; base < r.choices; base += kPlaceThreads) {
    __syncthreads();
    const int choice = base + int(threadIdx.x);
    const bool mine = choice < r.choices && r.expert[choice] == expert;
    const uint32_t votes = __ballot_sync(~0u, mine);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int mine_at = at + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < warp; ++w) mine_at += counts[w];
    if (mine) r.place[choice] = mine_at, r.row[mine_at] = choice / r.per_token;
    at += sum_of_warps();
  }
}

// In the order of the choices, so that a row's sum does not depend on its neighbours.
__global__ void __launch_bounds__(kSumThreads)
    sum_choices(const __nv_bfloat16* made, int64_t made_stride, Routing r, __nv_bfloat162* out,
                int64_t out_stride, int pairs) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x, first = row * r.per_token;
  for (int c = int(threadIdx.x); c < pairs; c += kSumThreads) {
    float2 sum{0, 0};
    for (int k = 0; k < r.per_token; ++k) {
      const float2 v = __bfloat1622float2(
          reinterpret_cast<const __nv_bfloat162*>(made + r.place[first + k] * made_stride)[c]);
      const float weight = r.weight[first + k];
      sum.x += weight * v.x, sum.y += weight * v.y;
    }
    out[row * out_stride + c] = __float22bfloat162_rn(sum);
  }
}

Tensor slice(const Tensor& t, int64_t first, int64_t count) {
  return {t.row<__nv_bfloat16>(first), t.dtype, count, t.cols, t.stride};
}

class CudaExperts final : public Experts {
 public:
  CudaExperts(const Context& context, Buffer starts) : context_(context), starts_(std::move(starts)) {}

  void run(const ExpertsArgs& a) override {
    CHECK(a.router.dtype == DType::f32 && a.x.dtype == DType::bf16 && a.out.dtype == DType::bf16);
    CHECK(a.router.cols <= kMaxExperts && a.per_token > 0 && a.per_token <= a.router.cols);
    CHECK(a.x.cols % 8 == 0 && a.out.stride % 2 == 0 && int64_t(a.experts.size()) == a.router.cols);
    if (a.x.rows == 0) return;
    const Routing r(a, starts_.as<int32_t>());
    const unsigned rows = unsigned(a.x.rows);
    launch(context_, choose, dim3((rows + kChooseWarps - 1) / kChooseWarps), dim3(kChooseWarps * 32), 0,
           a.router.row<float>(0), a.router.stride, int(rows), r, a.normalised);
    launch(context_, place, dim3(unsigned(r.experts)), dim3(kPlaceThreads), 0, r);

    const Tensor gate_up = a.gate_up.first_rows(r.choices), gated = a.gated.first_rows(r.choices),
                 made = a.gathered.first_rows(r.choices);
    product(r, a.x, r.row, a.experts, &ExpertWeights::gate_up, gate_up);
    for (int64_t first = 0; first < r.choices; first += kMostRows) {
      const int64_t count = std::min(kMostRows, r.choices - first);
      act_mul(context_, {slice(gate_up, first, count), a.activation, slice(gated, first, count)});
    }
    product(r, gated, nullptr, a.experts, &ExpertWeights::down, made);
    launch(context_, sum_choices, dim3(rows), dim3(kSumThreads), 0, made.row<__nv_bfloat16>(0), made.stride, r,
           a.out.row<__nv_bfloat162>(0), a.out.stride / 2, int(a.out.cols / 2));
  }

 private:
  static constexpr int64_t kMostRows = 32768;  // of act_mul's grid

  void product(const Routing& r, const Tensor& x, const int32_t* rows, std::span<const ExpertWeights> experts,
               Weight ExpertWeights::*matrix, const Tensor& out) {
    GroupedGemm gemm{x, rows, {}, out, r.starts, r.experts, r.choices};
    for (size_t e = 0; e < experts.size(); ++e) {
      const Weight& w = experts[e].*matrix;
      CHECK(w.parts.size() == 1 && w.parts[0].format.element == WeightElement::bf16,
            "a weight that load/ did not make");
      CHECK(w.rows == out.cols && w.cols == x.cols);
      gemm.weights.at[e] = w.parts[0].data.as<__nv_bfloat16>();
    }
    grouped_gemm(context_, gemm);
  }

  const Context& context_;
  Buffer starts_;
};

}  // namespace

Result<std::unique_ptr<Experts>> make_experts(const Context& context, Backend& backend) {
  grouped_gemm_prepare();
  Buffer starts = backend.alloc((kMaxExperts + 1) * sizeof(int32_t));
  if (!starts.data())
    return Error{ErrorCode::kResourceExhausted, "no memory left on the card for the experts' workspace"};
  return std::unique_ptr<Experts>(std::make_unique<CudaExperts>(context, std::move(starts)));
}

}  // namespace sluice::cuda
