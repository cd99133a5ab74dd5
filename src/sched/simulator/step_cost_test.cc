#include "sched/simulator/step_cost.h"

#include <gtest/gtest.h>

#include "sched/simulator/random.h"

namespace sluice {
namespace {

StepWork random_work(Random& random) {
  StepWork work;
  work.one_token_sequences = int(random.between(0, 100));
  const int prompts = int(random.between(work.one_token_sequences == 0, 3));
  work.sequences = work.one_token_sequences + prompts;
  work.rows = work.one_token_sequences;
  for (int i = 0; i < prompts; ++i) {
    const int rows = int(random.between(2, 400));
    work.rows += rows;
    const int first = random.chance(0.5) ? 0 : int(random.between(1, 20000));
    work.prompt_pairs += rows * (first + (rows + 1) / 2.0);
    work.prompt_context_tokens += first;
    work.kv_read_tokens += first + rows;
  }
  work.kv_read_tokens += work.one_token_sequences * random.between(1, 2000);
  work.pairs = work.prompt_pairs + double(work.kv_read_tokens);
  return work;
}

TEST(FitCost, FindsTheCoefficientsThatMadeTheSteps) {
  Random random(1, 0);
  FittedCost truth;
  truth.knee = 32;
  const double made[kCostTerms] = {4e-3, 1e-5, 2e-5, 5e-6, 0, 3e-9, 2e-9, 1e-7};
  std::copy(made, made + kCostTerms, truth.coefficient);
  std::vector<MeasuredStep> steps;
  for (int i = 0; i < 500; ++i) {
    const StepWork work = random_work(random);
    steps.push_back({work, truth.seconds(work)});
  }
  const CostFit fit = fit_cost(steps);
  EXPECT_NEAR(fit.mean_error, 0, 1e-6);
  EXPECT_EQ(fit.cost.knee, 32);
  for (int i = 0; i < kCostTerms; ++i)
    EXPECT_NEAR(fit.cost.coefficient[i], made[i], 1e-6 * 4e-3) << kCostTermNames[i];
}

TEST(FitCost, NoCoefficientIsNegative) {
  Random random(2, 0);
  std::vector<MeasuredStep> steps;
  for (int i = 0; i < 300; ++i) {
    const StepWork work = random_work(random);
    // Falls with the tokens read, as noise may make believe.
    steps.push_back({work, 0.01 - 1e-9 * double(work.kv_read_tokens) * random.uniform()});
  }
  const CostFit fit = fit_cost(steps);
  for (const double c : fit.cost.coefficient) EXPECT_GE(c, 0);
  EXPECT_NEAR(fit.total_error, 0, 0.02);
}

TEST(FitCost, OneKindOfStepIsEnough) {
  StepWork work;
  work.rows = work.sequences = work.one_token_sequences = 8;
  const CostFit fit = fit_cost(std::vector<MeasuredStep>(3, {work, 0.005}));
  EXPECT_NEAR(fit.cost.seconds(work), 0.005, 1e-9);
}

TEST(FitCost, TheSpreadIsWhatTheStepsDidBeyondTheFit) {
  Random random(3, 0);
  std::vector<MeasuredStep> steps;
  StepWork work;
  work.rows = work.sequences = work.one_token_sequences = 1;
  for (int i = 0; i < 2000; ++i) steps.push_back({work, random.chance(0.1) ? 0.02 : 0.01});
  const StepCost cost = fit_cost(steps).cost;
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += seconds(step_ns(cost, work, random.uniform())) / 10000;
  EXPECT_NEAR(sum, 0.011, 0.0003) << "the mean is kept, as throughput is";
  EXPECT_GT(step_ns(cost, work, 0.99), 15'000'000);
  EXPECT_LT(step_ns(cost, work, 0.5), 11'000'000);
}

TEST(Roofline, WeightsBoundFewRowsAndProductsMany) {
  Roofline roofline;
  roofline.shape = {.layers = 1, .hidden = 1, .weight_bytes = 1e9, .flops_per_row = 2e9};
  roofline.device = {.read_bytes_s = 1e12, .matrix_flops_s = 1e14, .attention_flops_s = 1e14};
  StepWork one;
  one.rows = one.sequences = one.one_token_sequences = 1;
  EXPECT_NEAR(roofline.seconds(one), 1e-3, 1e-6);
  StepWork many;
  many.rows = 10000, many.sequences = 1;
  EXPECT_NEAR(roofline.seconds(many), 0.2, 0.001);
}

}  // namespace
}  // namespace sluice
