// How long a step takes, learned from those that have run: what the budget of prompt tokens and the lanes'
// shares of a step are reckoned with.
//
//   time = fixed + one-token sequences · a + their cached tokens · b + prompt rows · c + (row, cached token)
//   pairs · d + cached tokens in front of prompts' chunks · e
//
// The last is what a chunk costs by its context, however few rows it has: a card computes attention in tiles of
// rows, and walks all keys for a tile that is nearly empty.
//
// Least squares with exponential forgetting, each step weighted by 1 / time² (errors count in per cent), no
// coefficient below zero: those that would be are left out, and the others fitted again. What the last steps
// say nothing about (the cost of a prompt's rows, while none comes) stays as it was learned: the solution is
// held to the one before by a small ridge. A time far off what was expected counts as four times it, so one
// stall does not move anything, and a device that became slower is believed in a few steps. Deterministic;
// owned by the engine thread; allocates nothing.
#pragma once

#include <array>

#include "base/clock.h"
#include "sched/step_plan.h"

namespace sluice {

class StepTime {
 public:
  // A step that has run. Plans without entries, and times that are not positive, say nothing.
  void note(const StepPlan& plan, TimeNs took);

  // Whether enough is known of both kinds of rows. Until then a row counts as 1 ns, and nothing else counts.
  bool known() const { return one_token_steps_ >= kEnough && prompt_steps_ >= kEnough; }

  // In ns.
  double fixed() const { return known() ? theta_[0] : 0; }
  double one_token(int context) const {
    return known() ? theta_[1] * kUnit[1] + theta_[2] * kUnit[2] * context : 1;
  }
  double prompt(int first, int count) const {
    return known() ? theta_[3] * kUnit[3] * count + theta_[4] * kUnit[4] * count * (first + count / 2.0) +
                         prompt_context(first)
                   : count;
  }
  // Of that, what any chunk from position `first` costs.
  double prompt_context(int first) const { return known() ? theta_[5] * kUnit[5] * first : 0; }
  // Tokens of a prompt, from position `first`, that take `time` or less; `most` at most. Where time is a limit,
  // no more than twice what any step has had: a line through short prompts says little of long ones, and
  // streams would pay for the mistake.
  int prompt_tokens(double time, int first, int most) const;

 private:
  static constexpr int kTerms = 6, kEnough = 4;
  static constexpr int kLeastSeen = 64;  // rows
  // Makes the terms of an ordinary step about 1, so that one ridge suits all.
  static constexpr std::array<double, kTerms> kUnit = {1,         1.0 / 16,           1.0 / 16384,
                                                       1.0 / 256, 1.0 / (256 * 2048), 1.0 / 16384};
  using Terms = std::array<double, kTerms>;
  using Free = std::array<bool, kTerms>;  // coefficients that are not held at zero

  static Terms terms_of(const StepPlan& plan);
  void solve(double ridge);
  Terms solved(const Free& free, double ridge) const;

  std::array<Terms, kTerms> products_{};  // sums of x·xᵀ
  Terms seen_{};                          // sums of x·time
  Terms theta_{};
  int one_token_steps_ = 0, prompt_steps_ = 0;
  int longest_prompt_ = 0;  // rows of prompts in one step
};

// When a step that has prompts beside sequences that generate should end. `decode_ns`: what the latter alone
// take. A target is that target. Automatic: a prompt may make a step 1.7 times as long; what is more as prompts
// pile up: as many times as there are prompts, times the share that they are of all sequences. So one long
// prompt among 16 streams leaves these under twice their pace, and where most wait for their first token a step
// grows to what fills a card. kLongestStep is the end of it, unless 1.7 times is longer.
//
// A queue lifts that: what prompts would take, but for the longest of them, beyond kQueueNs is to be had in
// kQueueSteps steps, up to kLongestQueuedStep. For streams that start sooner share their steps with more
// others, so that all end sooner; and one long prompt is no queue.
struct PromptPressure {
  double decode_ns = 0;
  int generating = 0;
  int prompts = 0;  // begun or waiting with a slot free
  double queue_ns =
      0;  // what these would take by themselves, without the longest; no more than kMostQueueNs counts
};
inline constexpr double kLongestStepNs = 36e6, kLongestQueuedStepNs = 72e6;
inline constexpr double kQueueNs = 250e6, kQueueSteps = 8;
inline constexpr double kMostQueueNs = kQueueNs + kQueueSteps * kLongestQueuedStepNs;
double step_limit_ns(const PromptPressure& pressure, TimeNs target_ns);

}  // namespace sluice
