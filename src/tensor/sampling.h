// The next token of one row of logits: what every backend on a host shares. Plain functions on host memory.
//
// Order of the steps (as vLLM): softcap -> [log-probabilities are taken here] -> logit_bias, bans, mask ->
// repetition, frequency and presence penalty -> temperature -> min_p -> top_k -> top_p -> one draw. Greedy rows
// (temperature below kGreedyTemperature) stop at the penalties and take the largest, the lowest id among
// equals.
//
// A row is read in slices of kSlice ids whose sums are merged in order of ids, so the outcome is the same
// however many threads shared the slices. The vocabulary is never sorted: top_k and top_p look at the ids near
// the maximum first and reach deeper only when these do not settle the question.
//
// NaN logits count as the lowest float, infinite ones as the largest: a broken row still gives an id, and never
// a crash.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/backend.h"

namespace sluice::sampling {

inline constexpr int kSlice =
    8192;  // 32 KB of logits: a slice stays in the first-level cache for its second pass
inline constexpr float kGreedyTemperature = 1e-5f;

struct Candidate {
  float logit;
  float weight;  // exp((logit - max) / temperature)
  int32_t id;
};

// Passes over x[0, n). One table per instruction set; plain_kernels() is the judge's.
struct Kernels {
  void (*softcap)(float* x, int n, float cap);  // x = cap * tanh(x / cap)
  int (*arg_max)(const float* x, int n);        // lowest index of the largest value; 0 where all are NaN
  // Sum of exp((x - max) * scale) over all x >= from; a `from` of -infinity takes all.
  double (*sum_exp)(const float* x, int n, float max, float scale, float from);
  int (*count_above)(const float* x, int n, float value);  // how many are greater
  // Appends every from <= x[i] < below, in order, with id first_id + i; `weight` is left alone. Returns how
  // many.
  int (*collect)(const float* x, int n, float from, float below, int32_t first_id, Candidate* out);
};
const Kernels& plain_kernels();

// What the first pass learns of a slice.
struct SliceStats {
  float max = 0;
  int32_t arg_max = 0;      // id in the whole row
  double raw_sum = 0;       // sum of exp(x - max); only where log-probabilities are wanted
  double tempered_sum = 0;  // sum of exp((x - max) / temperature); only where a draw needs it
};

constexpr int slice_count(int vocab) { return (vocab + kSlice - 1) / kSlice; }

// Scratch of one thread; sized once by `reserve`, nothing is allocated later for vocabularies up to that size.
struct Scratch {
  std::vector<Candidate> candidates;  // [V]
  std::vector<float> adjusted;        // [V] the row after bias, mask and penalties
  std::vector<int32_t> counts;        // [V] zero between calls
  std::vector<SliceStats> stats;      // [slices] of `adjusted`
  void reserve(int vocab);
};

bool wants_logprobs(const SampleRow& row);
bool is_adjusted(const SampleRow& row);

// First pass: stats of slice `slice` of a row (softcap already applied).
SliceStats slice_stats(const Kernels& k, const float* logits, int vocab, int slice, const SampleRow& row);

// Second: the result. `stats` holds all slices of the row; `logits` is left as it is.
SampleResult sample_row(const Kernels& k, const float* logits, int vocab, const SampleRow& row,
                        std::span<const SliceStats> stats, Scratch& scratch);

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);
// The number in [0, 1) that (seed, counter) names.
double uniform(uint64_t seed, uint64_t counter);

}  // namespace sluice::sampling
