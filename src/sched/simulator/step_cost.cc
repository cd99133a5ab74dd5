#include "sched/simulator/step_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace sluice {
namespace {

constexpr double kRowBytes = 60, kPromptRowBytes = 21;

using Matrix = std::array<std::array<double, kCostTerms>, kCostTerms>;
using Vector = std::array<double, kCostTerms>;

// Weighted sums of products: all that least squares needs of the steps.
struct Normal {
  Matrix a{};
  Vector b{};
  double c = 0;
};

Normal normal_of(std::span<const MeasuredStep> steps, const FittedCost& last) {
  Normal n;
  for (const MeasuredStep& step : steps) {
    double terms[kCostTerms];
    cost_terms(step.work, last.knee, terms);
    const double weight = 1 / std::max(1e-9, last.seconds(step.work));
    for (size_t i = 0; i < kCostTerms; ++i) {
      for (size_t j = 0; j < kCostTerms; ++j) n.a[i][j] += weight * terms[i] * terms[j];
      n.b[i] += weight * terms[i] * step.seconds;
    }
    n.c += weight * step.seconds * step.seconds;
  }
  return n;
}

// Solves for the free terms, the others at 0. Gauss with pivots; a term that the others already say gets 0.
Vector solve(const Normal& n, const std::array<bool, kCostTerms>& free) {
  Matrix a = n.a;
  Vector b = n.b, x{};
  std::array<bool, kCostTerms> used{};
  std::array<int, kCostTerms> pivot_row;
  pivot_row.fill(-1);
  for (size_t column = 0; column < kCostTerms; ++column) {
    if (!free[column]) continue;
    size_t best = kCostTerms;
    for (size_t row = 0; row < kCostTerms; ++row)
      if (free[row] && !used[row] &&
          (best == kCostTerms || std::abs(a[row][column]) > std::abs(a[best][column])))
        best = row;
    if (best == kCostTerms || std::abs(a[best][column]) <= 1e-10 * n.a[column][column]) continue;
    used[best] = true;
    pivot_row[column] = int(best);
    for (size_t row = 0; row < kCostTerms; ++row) {
      if (row == best || !free[row]) continue;
      const double factor = a[row][column] / a[best][column];
      for (size_t k = 0; k < kCostTerms; ++k) a[row][k] -= factor * a[best][k];
      b[row] -= factor * b[best];
    }
  }
  for (size_t column = 0; column < kCostTerms; ++column)
    if (const int row = pivot_row[column]; row >= 0) x[column] = b[size_t(row)] / a[size_t(row)][column];
  return x;
}

double error_of(const Normal& n, const Vector& x) {
  double e = n.c;
  for (size_t i = 0; i < kCostTerms; ++i) {
    e -= 2 * x[i] * n.b[i];
    for (size_t j = 0; j < kCostTerms; ++j) e += x[i] * n.a[i][j] * x[j];
  }
  return std::max(0.0, e);
}

// With so few terms every set of free ones can be tried: the best of those without a negative coefficient is
// the minimum, and no step-size rule can cycle.
Vector not_negative(const Normal& n) {
  Vector best{};
  double least = error_of(n, best);
  for (unsigned set = 1; set < 1u << kCostTerms; ++set) {
    std::array<bool, kCostTerms> free{};
    for (size_t i = 0; i < kCostTerms; ++i) free[i] = set >> i & 1;
    const Vector x = solve(n, free);
    if (*std::min_element(x.begin(), x.end()) < 0) continue;
    // A larger set that explains nothing more is left aside.
    const double error = error_of(n, x);
    if (error < least * (1 - 1e-9)) least = error, best = x;
  }
  return best;
}

// With weights by what was fitted before, the errors of all steps add up to nothing once nothing moves any
// more, so throughput comes out right. (With weights by what was measured they do not: slow steps, which noise
// makes, count too little.)
FittedCost fit_with_knee(std::span<const MeasuredStep> steps, int knee, double& error) {
  constexpr int kRounds = 6;
  FittedCost cost;
  cost.knee = knee;
  cost.coefficient[0] = 1e-3;  // to begin with, all weigh alike
  for (int round = 0; round < kRounds; ++round) {
    const Normal normal = normal_of(steps, cost);
    const Vector x = not_negative(normal);
    std::copy(x.begin(), x.end(), cost.coefficient);
    error = error_of(normal, x);
  }
  return cost;
}

void judge(CostFit& fit, std::span<const MeasuredStep> steps) {
  constexpr size_t kQuantiles = 257;
  double measured = 0, fitted = 0, squares = 0, residual = 0;
  std::vector<float> ratios;
  for (const MeasuredStep& step : steps) measured += step.seconds;
  const double mean = measured / double(steps.size());
  for (const MeasuredStep& step : steps) {
    const double s = fit.cost.seconds(step.work);
    fitted += s;
    fit.mean_error += std::abs(s - step.seconds) / step.seconds / double(steps.size());
    squares += (step.seconds - mean) * (step.seconds - mean);
    residual += (step.seconds - s) * (step.seconds - s);
    ratios.push_back(s > 0 ? float(step.seconds / s) : 1.f);
  }
  fit.total_error = (fitted - measured) / measured;
  fit.residual_share = squares > 0 ? residual / squares : 0;
  std::sort(ratios.begin(), ratios.end());
  double sum = 0;
  for (const float ratio : ratios) sum += ratio;
  for (size_t i = 0; i < kQuantiles; ++i)
    fit.cost.spread.push_back(ratios[i * (ratios.size() - 1) / (kQuantiles - 1)] *
                              float(double(ratios.size()) / sum));
}

}  // namespace

double Roofline::seconds(const StepWork& work) const {
  const double weights = shape.weight_bytes / device.read_bytes_s;
  const double products =
      (shape.flops_per_row * work.rows + shape.flops_per_sample * work.samples) / device.matrix_flops_s;
  const double generated_pairs = work.pairs - work.prompt_pairs;
  const double row_columns = double(shape.layers) * shape.hidden / device.read_bytes_s;
  return device.step_s + shape.layers * device.layer_s + std::sqrt(weights * weights + products * products) +
         generated_pairs * shape.kv_token_bytes / (device.read_bytes_s * device.kv_read_share) +
         (work.prompt_pairs + device.tile_rows / 2 * double(work.prompt_context_tokens)) *
             shape.flops_per_pair / device.attention_flops_s +
         (kRowBytes * work.rows + kPromptRowBytes * work.prompt_rows()) * row_columns;
}

void cost_terms(const StepWork& work, int knee, double (&terms)[kCostTerms]) {
  terms[0] = 1;
  terms[1] = work.rows;
  terms[2] = std::max(0, work.rows - knee);
  terms[3] = work.prompt_rows();
  terms[4] = work.sequences;
  terms[5] = double(work.kv_read_tokens);
  terms[6] = work.prompt_pairs;
  terms[7] = double(work.prompt_context_tokens);
}

double FittedCost::seconds(const StepWork& work) const {
  double terms[kCostTerms], sum = 0;
  cost_terms(work, knee, terms);
  for (int i = 0; i < kCostTerms; ++i) sum += coefficient[i] * terms[i];
  return sum;
}

CostFit fit_cost(std::span<const MeasuredStep> steps) {
  CHECK(!steps.empty());
  CostFit fit;
  fit.steps = steps.size();
  double least = std::numeric_limits<double>::infinity();
  for (const int knee : {0, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512}) {
    double error = 0;
    const FittedCost cost = fit_with_knee(steps, knee, error);
    if (error < least) least = error, fit.cost = cost;
  }
  judge(fit, steps);
  return fit;
}

TimeNs step_ns(const StepCost& cost, const StepWork& work, double luck) {
  double seconds = 0;
  if (const auto* fitted = std::get_if<FittedCost>(&cost)) {
    seconds = fitted->seconds(work);
    if (!fitted->spread.empty()) {
      const double rank = luck * double(fitted->spread.size() - 1);
      const size_t below = size_t(rank), above = std::min(below + 1, fitted->spread.size() - 1);
      seconds *=
          fitted->spread[below] + (rank - double(below)) * (fitted->spread[above] - fitted->spread[below]);
    }
  } else {
    seconds = std::get<Roofline>(cost).seconds(work);
  }
  return std::max<TimeNs>(1, TimeNs(seconds * 1e9));
}

}  // namespace sluice
