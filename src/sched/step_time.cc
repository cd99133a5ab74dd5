#include "sched/step_time.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr double kRemembered = 0.97;  // of a step by the next: about the last thirty count
constexpr double kFarOff = 4;         // times what was expected
constexpr double kRidge = 0.02;

}  // namespace

StepTime::Terms StepTime::terms_of(const StepPlan& plan) {
  Terms x{1, 0, 0, 0, 0, 0};
  for (const PlanEntry& e : plan.entries) {
    if (e.count == 1) {
      x[1] += kUnit[1];
      x[2] += kUnit[2] * e.first;
    } else {
      x[3] += kUnit[3] * e.count;
      x[4] += kUnit[4] * e.count * (e.first + e.count / 2.0);
      x[5] += kUnit[5] * e.first;
    }
  }
  return x;
}

void StepTime::note(const StepPlan& plan, TimeNs took) {
  if (plan.entries.empty() || took <= 0) return;
  const Terms x = terms_of(plan);
  double time = double(took), expected = 0;
  for (int i = 0; i < kTerms; ++i) expected += theta_[size_t(i)] * x[size_t(i)];
  if (known() && expected > 0) time = std::clamp(time, expected / kFarOff, expected * kFarOff);
  int rows = 0;
  for (const PlanEntry& e : plan.entries) rows += e.count > 1 ? e.count : 0;
  longest_prompt_ = std::max(longest_prompt_, rows);
  const double weight = 1 / (time * time);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      double& sum = products_[size_t(i)][size_t(j)];
      sum = sum * kRemembered + weight * x[size_t(i)] * x[size_t(j)];
    }
    seen_[size_t(i)] = seen_[size_t(i)] * kRemembered + weight * x[size_t(i)] * time;
  }
  one_token_steps_ = std::min(one_token_steps_ + (x[1] > 0), kEnough);
  prompt_steps_ = std::min(prompt_steps_ + (x[3] > 0), kEnough);
  solve(kRidge * weight);
}

// (products + ridge · 1) theta = seen + ridge · theta before, for those coefficients that do not come out below
// zero. Each round leaves out the lowest, so there are at most as many as terms.
void StepTime::solve(double ridge) {
  Free free;
  free.fill(true);
  while (true) {
    const Terms x = solved(free, ridge);
    const auto lowest = std::min_element(x.begin(), x.end());
    if (!(*lowest < 0)) {
      theta_ = x;
      return;
    }
    free[size_t(lowest - x.begin())] = false;
  }
}

// By Cholesky's decomposition; 0 where not free.
StepTime::Terms StepTime::solved(const Free& free, double ridge) const {
  std::array<Terms, kTerms> l{};
  Terms y{};
  for (size_t i = 0; i < kTerms; ++i) {
    if (!free[i]) continue;
    for (size_t j = 0; j <= i; ++j) {
      if (!free[j]) continue;
      double sum = products_[i][j] + (i == j ? ridge : 0);
      for (size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
      l[i][j] = i == j ? std::sqrt(std::max(sum, ridge * 1e-6)) : sum / l[j][j];
    }
    y[i] = seen_[i] + ridge * theta_[i];
    for (size_t k = 0; k < i; ++k) y[i] -= l[i][k] * y[k];
    y[i] /= l[i][i];
  }
  for (size_t i = kTerms; i-- > 0;) {
    if (!free[i]) continue;
    for (size_t k = i + 1; k < kTerms; ++k) y[i] -= l[k][i] * y[k];
    y[i] /= l[i][i];
  }
  return y;
}

int StepTime::prompt_tokens(double time, int first, int most) const {
  if (time <= 0) return 0;
  if (std::isinf(time)) return most;
  most = std::min(most, std::max(kLeastSeen, 2 * longest_prompt_));
  if (prompt(first, most) <= time) return most;
  if (!known()) return int(time);
  time -= prompt_context(first);
  if (time <= 0) return 0;
  const double row = theta_[3] * kUnit[3], pair = theta_[4] * kUnit[4];
  // pair/2 n² + (row + pair · first) n = time less the context's, for the positive n.
  const double slope = row + pair * first;
  const double root = std::sqrt(slope * slope + 2 * pair * time);
  return int(std::min(2 * time / (slope + root), double(most)));
}

double step_limit_ns(const PromptPressure& p, TimeNs target_ns) {
  if (target_ns > 0) return double(target_ns);
  constexpr double kAlways = 0.7;
  const double piled_up = double(p.prompts) * p.prompts / std::max(1, p.prompts + p.generating);
  const double of_queue = std::min((p.queue_ns - kQueueNs) / kQueueSteps, kLongestQueuedStepNs);
  return std::max({std::min(p.decode_ns * (1 + std::max(kAlways, piled_up)), kLongestStepNs),
                   p.decode_ns * (1 + kAlways), of_queue});
}

}  // namespace sluice
