// Mixtures of experts out of the other ops: for backends whose calls have done their work when they return, and
// whose memory the caller can read.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tensor/backend.h"

namespace sluice {
namespace {

// The arrays in ExpertsArgs::routing, each [T * K]; entry t * K + k is row t's k-th best expert.
struct Routing {
  Routing(const ExpertsArgs& a) : choices(a.x.rows * a.per_token) {
    auto* at = a.routing.row<int32_t>(0);
    expert = at, place = at + choices, row = at + 2 * choices;
    weight = reinterpret_cast<float*>(at + 3 * choices);
  }
  int64_t choices;
  int32_t* expert;
  int32_t* place;  // where the choice's row lies among those gathered by expert
  int32_t* row;    // [place] the row of x
  float* weight;
};

// The K largest of a row, largest first; ties go to the lowest index. Weights are the softmax over all experts,
// or over the chosen.
void choose(const ExpertsArgs& a, int64_t t, Routing& r) {
  const float* logits = a.router.row<float>(t);
  int32_t* expert = r.expert + t * a.per_token;
  float* weight = r.weight + t * a.per_token;
  std::array<int32_t, kMaxExperts> order;
  const auto end = order.begin() + a.router.cols;
  for (int32_t e = 0; e < a.router.cols; ++e) order[size_t(e)] = e;
  std::partial_sort(order.begin(), order.begin() + a.per_token, end, [&](int32_t x, int32_t y) {
    return logits[x] != logits[y] ? logits[x] > logits[y] : x < y;
  });
  const float top = logits[order[0]];
  double sum = 0;
  for (int32_t e = 0; e < (a.normalised ? a.per_token : a.router.cols); ++e)
    sum += std::exp(double(logits[order[size_t(e)]] - top));
  for (int k = 0; k < a.per_token; ++k) {
    expert[k] = order[size_t(k)];
    weight[k] = float(std::exp(double(logits[expert[k]] - top)) / sum);
  }
}

Tensor rows_of(const Tensor& t, int64_t first, int64_t count) {
  return {t.row<float>(first), t.dtype, count, t.cols, t.stride};
}

}  // namespace

void Backend::experts(const ExpertsArgs& a) {
  const int64_t t = a.x.rows, experts = a.router.cols;
  CHECK(a.x.dtype == DType::f32 && a.router.dtype == DType::f32, "this backend has no mixtures of experts");
  CHECK(experts <= kMaxExperts && a.per_token <= experts);
  Routing r(a);
  for (int64_t i = 0; i < t; ++i) choose(a, i, r);
  std::array<int32_t, kMaxExperts + 1> starts{};
  for (int64_t i = 0; i < r.choices; ++i) ++starts[size_t(r.expert[i]) + 1];
  for (int64_t e = 0; e < experts; ++e) starts[size_t(e) + 1] += starts[size_t(e)];
  std::array<int32_t, kMaxExperts + 1> next = starts;
  for (int64_t i = 0; i < r.choices; ++i) {
    r.place[i] = next[size_t(r.expert[i])]++;
    r.row[r.place[i]] = int32_t(i / a.per_token);
  }
  const Tensor gathered = a.gathered.first_rows(r.choices);
  gather_rows(a.x, r.row, gathered);
  for (size_t e = 0; e < size_t(experts); ++e) {
    const int64_t first = starts[e], count = starts[e + 1] - first;
    if (count == 0) continue;
    const Tensor rows = rows_of(gathered, first, count), gate_up = rows_of(a.gate_up, first, count),
                 gated = rows_of(a.gated, first, count);
    linear({rows, a.experts[e].gate_up, nullptr, gate_up});
    act_mul({gate_up, a.activation, gated});
    linear({gated, a.experts[e].down, nullptr, rows});
  }
  // In the order of the choices, so that a row's sum does not depend on its neighbours.
  for (int64_t i = 0; i < t; ++i) {
    float* out = a.out.row<float>(i);
    std::memset(out, 0, size_t(a.out.cols) * sizeof(float));
    for (int64_t k = i * a.per_token; k < (i + 1) * a.per_token; ++k) {
      const float* made = gathered.row<float>(r.place[k]);
      for (int64_t c = 0; c < a.out.cols; ++c) out[c] += r.weight[k] * made[c];
    }
  }
}

}  // namespace sluice
