#include "tensor/sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace sluice::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float finite(float x) {
  return x >= -FLT_MAX ? std::min(x, FLT_MAX) : -FLT_MAX;
}  // NaN takes the second branch

void plain_softcap(float* x, int n, float cap) {
  for (int i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

int plain_arg_max(const float* x, int n) {
  int best = 0;
  for (int i = 1; i < n; ++i) {
    if (finite(x[i]) > finite(x[best])) best = i;
  }
  return best;
}

double plain_sum_exp(const float* x, int n, float max, float scale, float from) {
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    if (finite(x[i]) >= from) sum += std::exp((finite(x[i]) - max) * scale);
  }
  return sum;
}

int plain_count_above(const float* x, int n, float value) {
  int count = 0;
  for (int i = 0; i < n; ++i) count += x[i] > value;
  return count;
}

int plain_collect(const float* x, int n, float from, float below, int32_t first_id, Candidate* out) {
  int count = 0;
  for (int i = 0; i < n; ++i) {
    if (x[i] >= from && !(x[i] >= below)) out[count++] = {x[i], 0, first_id + i};
  }
  return count;
}

bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The state of one row on its way to an id.
struct Row {
  const Kernels& k;
  const float* logits;
  int vocab;
  const SampleRow& wish;
  std::span<const SliceStats> stats;
  Scratch& scratch;
  float max = -FLT_MAX;
  int arg_max = 0;
};

int slice_size(int vocab, int slice) { return std::min(kSlice, vocab - slice * kSlice); }

void find_max(Row& r) {
  r.max = r.stats[0].max;
  r.arg_max = r.stats[0].arg_max;
  for (const SliceStats& s : r.stats.subspan(1)) {
    if (s.max > r.max) r.max = s.max, r.arg_max = s.arg_max;
  }
}

// Ids with from <= logit < below into the scratch, in order of ids.
std::span<Candidate> collect_all(const Row& r, float from, float below = kInfinity) {
  Candidate* c = r.scratch.candidates.data();
  int count = 0;
  // +infinity itself belongs to the top: nothing is below a bound that it does not reach.
  const float bound = below == kInfinity ? std::numeric_limits<float>::quiet_NaN() : below;
  for (size_t s = 0; s < r.stats.size(); ++s) {
    if (r.stats[s].max < from) continue;
    const int begin = int(s) * kSlice;
    count += r.k.collect(r.logits + begin, slice_size(r.vocab, int(s)), from, bound, begin, c + count);
  }
  return {c, size_t(count)};
}

// Weight of the ids with logits from `from` on; the whole row's lies in the slices' sums already.
double mass_from(const Row& r, float scale, float from) {
  double mass = 0;
  for (size_t s = 0; s < r.stats.size(); ++s) {
    if (r.stats[s].max < from) continue;
    mass += r.k.sum_exp(r.logits + s * kSlice, slice_size(r.vocab, int(s)), r.max, scale, from);
  }
  return mass;
}

double whole_mass(const Row& r, float scale) {
  double mass = 0;
  for (const SliceStats& s : r.stats) mass += s.tempered_sum * std::exp(double(s.max - r.max) * scale);
  return mass;
}

// Where the kept ids end: greater logits are kept, and of equal ones the ids up to `id`.
struct Cut {
  float logit;
  int32_t id;
};
constexpr Cut kAll = {-kInfinity, INT32_MAX};

double kept_mass(const Row& r, size_t slice, float scale, const Cut& cut) {
  const SliceStats& stats = r.stats[slice];
  if (cut.logit == kAll.logit) return stats.tempered_sum * std::exp(double(stats.max - r.max) * scale);
  if (stats.max < cut.logit) return 0;
  const int begin = int(slice) * kSlice, n = slice_size(r.vocab, int(slice));
  const int with_equals = std::clamp(cut.id + 1 - begin, 0, n);
  const float* x = r.logits + begin;
  double mass = 0;
  if (with_equals > 0) mass += r.k.sum_exp(x, with_equals, r.max, scale, cut.logit);
  if (with_equals < n)
    mass += r.k.sum_exp(x + with_equals, n - with_equals, r.max, scale, std::nextafter(cut.logit, kInfinity));
  return mass;
}

// The id at weight `left`, counted in order of ids over those that are kept: first the slice, by its sum, then
// the id within it.
int draw_from(const Row& r, float scale, const Cut& cut, double left) {
  int chosen = r.arg_max;
  for (size_t s = 0; s < r.stats.size(); ++s) {
    const double here = kept_mass(r, s, scale, cut);
    if (left >= here && s + 1 < r.stats.size()) {
      left -= here;
      continue;
    }
    const int begin = int(s) * kSlice, end = begin + slice_size(r.vocab, int(s));
    for (int i = begin; i < end; ++i) {
      const float x = finite(r.logits[i]);
      const bool kept = x > cut.logit || (x == cut.logit && i <= cut.id);
      const double w = kept ? std::exp((x - r.max) * scale) : 0;
      if (w <= 0) continue;
      chosen = i;  // rounding may leave a little over at the slice's end: then its last possible id is taken
      left -= w;
      if (left < 0) break;
    }
    break;
  }
  return chosen;
}

// Candidates in order of ids, as every draw goes, so that a seed names the same id whatever way they were
// found.
int draw(std::span<const Candidate> c, double total, double u, int otherwise) {
  double left = u * total;
  int chosen = otherwise;
  for (const Candidate& x : c) {
    if (!(x.weight > 0)) continue;
    chosen = x.id;
    left -= x.weight;
    if (left < 0) break;
  }
  return chosen;
}

double weigh(std::span<Candidate> c, float max, float scale) {
  double total = 0;
  for (Candidate& x : c) {
    x.weight = std::exp((finite(x.logit) - max) * scale);
    total += x.weight;
  }
  return total;
}

double sum_weights(std::span<const Candidate> c) {
  double total = 0;
  for (const Candidate& x : c) total += x.weight;
  return total;
}

// How many of the likeliest reach `target` weight; they are moved to the front. A selection by halves: linear,
// no sort.
size_t select_mass(std::span<Candidate> c, double target) {
  size_t begin = 0, end = c.size();
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(c.begin() + begin, c.begin() + middle, c.begin() + end, before);
    const double left = sum_weights(c.subspan(begin, middle - begin));
    if (left >= target) {
      end = middle;
    } else {
      target -= left;
      begin = middle;
    }
  }
  return end;
}

// top_p where it keeps thousands of ids. Bisects for a narrow band of logits that holds the cut, by sums over
// the row; only the band's ids are looked at one by one. `shallow` is a depth that does not hold target, `deep`
// the next guess.
int draw_wide(const Row& r, float scale, double u, double target, float shallow, float deep) {
  const auto at = [&](float depth) { return depth > 200 ? -FLT_MAX : r.max - depth / scale; };
  double above = mass_from(r, scale, at(shallow));
  for (double mass; deep <= 200 && (mass = mass_from(r, scale, at(deep))) < target; deep *= 1.5f) {
    shallow = deep;
    above = mass;
  }
  for (int i = 0; i < 6; ++i) {
    const float middle = (shallow + std::min(deep, 200.0f)) / 2;
    const double mass = mass_from(r, scale, at(middle));
    if (mass < target) {
      shallow = middle;
      above = mass;
    } else {
      deep = middle;
    }
  }
  std::span<Candidate> band = collect_all(r, at(deep), at(shallow));
  weigh(band, r.max, scale);
  band = band.first(select_mass(band, target - above));
  if (band.empty()) return draw_from(r, scale, {at(shallow), INT32_MAX}, u * above);
  const Candidate last = *std::max_element(band.begin(), band.end(), before);
  return draw_from(r, scale, {finite(last.logit), last.id}, u * (above + sum_weights(band)));
}

// min_p, top_k and top_p over the ids within some depth below the maximum, deeper until the answer is exact.
int draw_filtered(const Row& r, float scale, double u) {
  constexpr size_t kWide = 4096;
  const SampleRow& w = r.wish;
  const bool by_count = w.top_k > 0 && w.top_k < r.vocab;
  float last_depth = 0;
  // With min_p the depth that it names holds all that may be drawn. Else it begins where a usual distribution
  // has some hundred ids and grows slowly: another pass costs less than candidates that are not needed.
  for (float depth = w.min_p > 0 ? -std::log(std::min(w.min_p, 1.0f)) : 4;; last_depth = depth, depth *= 1.5f) {
    const bool complete = w.min_p > 0 || depth > 200;  // exp(-200) is below the smallest float
    const float threshold = depth > 200 ? -FLT_MAX : r.max - depth / scale;
    std::span<Candidate> c = collect_all(r, threshold);
    if (c.empty()) return r.arg_max;
    if (by_count && c.size() < size_t(w.top_k) && !complete) continue;
    if (!by_count && !complete && c.size() > kWide) {
      return draw_wide(r, scale, u, double(w.top_p) * whole_mass(r, scale), last_depth, depth);
    }
    double total = weigh(c, r.max, scale);
    if (by_count && c.size() > size_t(w.top_k)) {
      std::nth_element(c.begin(), c.begin() + w.top_k, c.end(), before);
      c = c.first(size_t(w.top_k));
      total = sum_weights(c);
    }
    if (w.top_p < 1) {
      // Without top_k the ids further down count in the sum that top_p is a share of.
      const double target = double(w.top_p) * (by_count || complete ? total : whole_mass(r, scale));
      if (total < target && !complete) continue;
      c = c.first(select_mass(c, target));
      total = sum_weights(c);
    }
    std::sort(c.begin(), c.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    return draw(c, total, u, r.arg_max);
  }
}

// `peak`: SampleResult::peak, where something is drawn.
int choose(Row& r, float& peak) {
  find_max(r);
  const SampleRow& w = r.wish;
  if (!(w.temperature >= kGreedyTemperature)) return r.arg_max;
  const float scale = 1 / w.temperature;
  const double u = uniform(w.seed, w.counter);
  peak = float(1 / std::max(1.0, whole_mass(r, scale)));
  const bool filtered = (w.top_k > 0 && w.top_k < r.vocab) || w.top_p < 1 || w.min_p > 0;
  return filtered ? draw_filtered(r, scale, u) : draw_from(r, scale, kAll, u * whole_mass(r, scale));
}

bool has_penalties(const SampleRow& w) {
  return w.history_total > 0 &&
         (w.presence_penalty != 0 || w.frequency_penalty != 0 || w.repetition_penalty != 1);
}

bool in_range(int32_t id, int vocab) { return id >= 0 && id < vocab; }

void penalize(float* x, int vocab, const SampleRow& w, std::vector<int32_t>& counts) {
  // A prompt id marks itself with the sign bit, a generated one counts; each id is dealt with and cleared once.
  constexpr int32_t kSeen = INT32_MIN;
  for (int i = 0; i < w.history_total; ++i) {
    const int32_t id = w.history[i];
    if (!in_range(id, vocab)) continue;
    counts[id] = i < w.history_prompt ? counts[id] | kSeen : (counts[id] + 1) | kSeen;
  }
  for (int i = 0; i < w.history_total; ++i) {
    const int32_t id = w.history[i];
    if (!in_range(id, vocab) || counts[id] == 0) continue;
    const int generated = counts[id] & ~kSeen;
    counts[id] = 0;
    x[id] = x[id] > 0 ? x[id] / w.repetition_penalty : x[id] * w.repetition_penalty;
    x[id] -= w.frequency_penalty * float(generated);
    if (generated > 0) x[id] -= w.presence_penalty;
  }
}

void adjust(float* x, int vocab, const SampleRow& w, std::vector<int32_t>& counts) {
  constexpr float kNever = -kInfinity;
  for (int i = 0; i < w.bias_count; ++i) {
    if (in_range(w.bias_ids[i], vocab)) x[w.bias_ids[i]] += w.bias_values[i];
  }
  if (has_penalties(w)) penalize(x, vocab, w, counts);
  for (int i = 0; i < w.banned_count; ++i) {
    if (in_range(w.banned_ids[i], vocab)) x[w.banned_ids[i]] = kNever;
  }
  if (w.mask == nullptr) return;
  for (int begin = 0; begin < vocab; begin += 32) {
    const uint32_t allowed = w.mask[begin / 32];
    if (allowed == ~0u) continue;
    for (int i = begin; i < std::min(begin + 32, vocab); ++i) {
      if (!(allowed >> (i - begin) & 1)) x[i] = kNever;
    }
  }
}

int sample_id(Row r, float& peak) {
  if (!is_adjusted(r.wish)) return choose(r, peak);
  Scratch& s = r.scratch;
  std::copy_n(r.logits, r.vocab, s.adjusted.data());
  adjust(s.adjusted.data(), r.vocab, r.wish, s.counts);
  SampleRow without_logprobs = r.wish;
  without_logprobs.top_logprobs = without_logprobs.target_id = -1;
  for (size_t i = 0; i < r.stats.size(); ++i) {
    s.stats[i] = slice_stats(r.k, s.adjusted.data(), r.vocab, int(i), without_logprobs);
  }
  r.logits = s.adjusted.data();
  r.stats = std::span<const SliceStats>(s.stats).first(r.stats.size());
  return choose(r, peak);
}

// Log-probability and rank of result.id and the likeliest ids, of the row as the model gave it.
void add_logprobs(Row& r, SampleResult& result) {
  find_max(r);
  double sum = 0;
  for (const SliceStats& s : r.stats) sum += s.raw_sum * std::exp(double(s.max) - double(r.max));
  const double log_sum = double(r.max) + std::log(sum);
  result.peak = float(1 / std::max(1.0, sum));
  if (in_range(result.id, r.vocab)) {
    const float own = finite(r.logits[result.id]);
    result.logprob = float(own - log_sum);
    int rank = 0;
    for (size_t s = 0; s < r.stats.size(); ++s) {
      if (r.stats[s].max <= own) continue;
      rank += r.k.count_above(r.logits + s * kSlice, slice_size(r.vocab, int(s)), own);
    }
    for (int i = 0; i < result.id; ++i) rank += finite(r.logits[i]) == own;
    result.rank = rank;
  }
  const int wanted = std::min({r.wish.top_logprobs, kMaxTopLogprobs, r.vocab});
  if (wanted <= 0) return;
  std::span<Candidate> c;
  for (float depth = 4; int(c.size()) < wanted; depth *= 1.5f) {
    c = collect_all(r, depth > 1e4f ? -kInfinity : r.max - depth);
    if (depth > 1e4f) break;  // fewer than wanted are numbers
  }
  result.top_count = std::min(int(c.size()), wanted);
  std::partial_sort(c.begin(), c.begin() + result.top_count, c.end(), before);
  for (int i = 0; i < result.top_count; ++i) {
    result.top_ids[i] = c[i].id;
    result.top_logprobs[i] = float(finite(c[i].logit) - log_sum);
  }
}

}  // namespace

const Kernels& plain_kernels() {
  static constexpr Kernels kPlain = {plain_softcap, plain_arg_max, plain_sum_exp, plain_count_above,
                                     plain_collect};
  return kPlain;
}

void Scratch::reserve(int vocab) {
  candidates.resize(size_t(vocab));
  adjusted.resize(size_t(vocab));
  counts.resize(size_t(vocab));
  stats.resize(size_t(slice_count(vocab)));
}

bool wants_logprobs(const SampleRow& row) { return row.top_logprobs >= 0 || row.target_id >= 0; }

bool is_adjusted(const SampleRow& row) {
  return row.bias_count > 0 || row.banned_count > 0 || row.mask != nullptr || has_penalties(row);
}

SliceStats slice_stats(const Kernels& k, const float* logits, int vocab, int slice, const SampleRow& row) {
  const int begin = slice * kSlice, n = slice_size(vocab, slice);
  const float* x = logits + begin;
  SliceStats s;
  const int at = k.arg_max(x, n);
  s.arg_max = begin + at;
  s.max = finite(x[at]);
  if (wants_logprobs(row)) s.raw_sum = k.sum_exp(x, n, s.max, 1, -kInfinity);
  const bool draws = row.slot >= 0 && row.temperature >= kGreedyTemperature;
  if (draws) s.tempered_sum = k.sum_exp(x, n, s.max, 1 / row.temperature, -kInfinity);
  return s;
}

SampleResult sample_row(const Kernels& k, const float* logits, int vocab, const SampleRow& row,
                        std::span<const SliceStats> stats, Scratch& scratch) {
  CHECK(vocab > 0 && stats.size() == size_t(slice_count(vocab)));
  CHECK(scratch.candidates.size() >= size_t(vocab), "Scratch::reserve comes first");
  Row r{k, logits, vocab, row, stats, scratch};
  SampleResult result;
  result.id = row.slot >= 0 ? sample_id(r, result.peak) : row.target_id;
  if (wants_logprobs(row)) add_logprobs(r, result);
  return result;
}

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ key[1], uint32_t(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return c;
}

double uniform(uint64_t seed, uint64_t counter) {
  const auto x =
      philox4x32({uint32_t(counter), uint32_t(counter >> 32), 0, 0}, {uint32_t(seed), uint32_t(seed >> 32)});
  return double((uint64_t(x[0]) << 32 | x[1]) >> 11) * 0x1p-53;
}

}  // namespace sluice::sampling
