// What a step takes, as a value: reckoned from a shape and a device's limits (Roofline), or fitted to steps
// that were recorded (FittedCost).
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "sched/step_work.h"

namespace sluice {

// What a device sustains.
struct DeviceLimits {
  double read_bytes_s = 0;       // of memory
  double matrix_flops_s = 0;     // of the layers' products, while they run all the time
  double attention_flops_s = 0;  // of prompts' attention
  double tile_rows = 0;          // in which that is computed
  double kv_read_share = 1;      // of read_bytes_s, what attention of generated tokens reaches
  double layer_s = 0;            // of each layer, whatever the batch: ends and starts of its kernels
  double step_s = 0;             // of each step
};

// A model's shape, as far as time goes.
struct ShapeCost {
  int layers = 0, hidden = 0;
  double weight_bytes = 0;      // read once a step
  double kv_token_bytes = 0;    // of one cached token in one layer group
  double flops_per_row = 0;     // of the layers' products
  double flops_per_sample = 0;  // of the head
  double flops_per_pair = 0;    // of attention, in one layer group
};

// time = step + layers + sqrt(weights² + products²) + attention + rows
//   weights   weight_bytes / read_bytes_s
//   products  flops / matrix_flops_s. Reading overlaps with computing, though less and less the nearer the two
//             are: their Euclidean sum has been within 4 % of an H200 from 1 to 2,048 rows.
//   attention cached tokens of one-token sequences at a share of the read rate; pairs of prompts at their rate,
//             half a tile of rows being empty, plus kPromptRowBytes a row and layer
//   rows      norms, rotation, activation: kRowBytes of memory traffic for each row, layer and hidden column
struct Roofline {
  ShapeCost shape;
  DeviceLimits device;

  double seconds(const StepWork& work) const;
};

// Terms that a fitted cost is linear in; a step's time is their sum with coefficients that are not negative.
inline constexpr int kCostTerms = 8;
inline constexpr const char* kCostTermNames[kCostTerms] = {"step",
                                                           "row",
                                                           "row beyond the knee",
                                                           "prompt row",
                                                           "sequence",
                                                           "cached token read",
                                                           "prompt pair",
                                                           "cached token before a prompt's chunk"};

struct FittedCost {
  double coefficient[kCostTerms] = {};  // seconds
  // Rows up to which more of them cost little, since reading weights is what takes the time.
  int knee = 0;
  // Quantiles, evenly spaced and 1 in the mean, of measured over fitted time; empty: every step takes what was
  // fitted.
  std::vector<float> spread;

  double seconds(const StepWork& work) const;
};
void cost_terms(const StepWork& work, int knee, double (&terms)[kCostTerms]);

struct MeasuredStep {
  StepWork work;
  double seconds = 0;
};

struct CostFit {
  FittedCost cost;
  size_t steps = 0;
  double total_error = 0;     // (fitted - measured) / measured of all steps together
  double mean_error = 0;      // mean of |fitted - measured| / measured
  double residual_share = 0;  // share of the variance that the fit does not explain
};

// Non-negative least squares over every set of terms for each of a few knees, the best of which is kept. Steps
// weigh by 1 / fitted time, so that short steps count though long ones err by more. At least one step.
CostFit fit_cost(std::span<const MeasuredStep> steps);

using StepCost = std::variant<Roofline, FittedCost>;
// `luck` in (0, 1) picks from the spread of a fitted cost. At least 1 ns.
TimeNs step_ns(const StepCost& cost, const StepWork& work, double luck);

}  // namespace sluice
