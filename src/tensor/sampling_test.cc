// Sampling through Backend::sample, for the judge and the CPU backend: every draw is compared with the
// distribution that the definition gives by sorting the whole vocabulary. Seeds and counters are fixed, so
// nothing here is left to chance.
#include "tensor/sampling.h"

#include <limits>
#include <map>
#include <numeric>

#include "tensor/ops_fixture.h"

namespace sluice::test {
namespace {

// The judge, and each table of kernels once (amx shares that of avx512), alone or on a team.
std::vector<Candidate> candidates_and_judge() {
  std::vector<Candidate> all = {{"reference", 1}};
  for (const Candidate& c : candidates()) {
    if (c.isa != "amx" && c.threads == (c.isa == "avx2" ? 1 : 3)) all.push_back(c);
  }
  return all;
}

class Sampling : public testing::TestWithParam<Candidate> {
 protected:
  std::unique_ptr<Backend> backend_ =
      GetParam().isa == "reference" ? make_ref_backend() : make(GetParam(), 100003);

  // The rows' results; logits [rows, vocab] are copied, since sampling may overwrite them.
  std::vector<SampleResult> sample(std::vector<float> logits, std::vector<SampleRow> rows, float softcap = 0) {
    const int64_t n = int64_t(rows.size());
    std::vector<SampleResult> results(rows.size());
    last_ids_.assign(64, -7);
    backend_->sample({view(logits, n, int64_t(logits.size()) / n), rows, results, last_ids_.data(), softcap});
    return results;
  }
  SampleResult sample_one(const std::vector<float>& logits, const SampleRow& row) {
    return sample(logits, {row})[0];
  }

  std::vector<int32_t> last_ids_;
};

INSTANTIATE_TEST_SUITE_P(All, Sampling, testing::ValuesIn(candidates_and_judge()),
                         [](const auto& info) { return info.param.name(); });

SampleRow drawing(float temperature = 1) {
  SampleRow r;
  r.slot = 0;
  r.temperature = temperature;
  r.seed = 1234;
  return r;
}

// Probability of every id by the definition: adjust, divide by temperature, min_p, top_k, top_p.
std::vector<double> exact_distribution(std::vector<float> x, const SampleRow& r) {
  const int vocab = int(x.size());
  for (int i = 0; i < r.bias_count; ++i) x[size_t(r.bias_ids[i])] += r.bias_values[i];
  std::map<int, int> generated, seen;
  for (int i = 0; i < r.history_total; ++i) {
    ++seen[r.history[i]];
    if (i >= r.history_prompt) ++generated[r.history[i]];
  }
  for (auto [id, count] : seen)
    x[size_t(id)] =
        x[size_t(id)] > 0 ? x[size_t(id)] / r.repetition_penalty : x[size_t(id)] * r.repetition_penalty;
  for (auto [id, count] : generated) x[size_t(id)] -= r.frequency_penalty * float(count) + r.presence_penalty;
  for (int i = 0; i < r.banned_count; ++i) x[size_t(r.banned_ids[i])] = -INFINITY;
  for (int i = 0; r.mask && i < vocab; ++i) {
    if (!(r.mask[i / 32] >> (i % 32) & 1)) x[size_t(i)] = -INFINITY;
  }
  std::vector<int> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[size_t(a)] > x[size_t(b)]; });
  const double max = x[size_t(order[0])];
  std::vector<double> weight(x.size());
  for (size_t i = 0; i < x.size(); ++i) weight[i] = std::exp((double(x[i]) - max) / r.temperature);
  size_t keep = x.size();
  while (r.min_p > 0 && weight[size_t(order[keep - 1])] < r.min_p) --keep;
  if (r.top_k > 0) keep = std::min(keep, size_t(r.top_k));
  double total = 0, sum = 0;
  for (size_t i = 0; i < keep; ++i) total += weight[size_t(order[i])];
  if (r.top_p < 1) {
    for (size_t i = 0; i < keep; ++i) {
      sum += weight[size_t(order[i])];
      if (sum >= double(r.top_p) * total) keep = i + 1;
    }
    total = sum;
  }
  std::vector<double> p(x.size(), 0);
  for (size_t i = 0; i < keep; ++i) p[size_t(order[i])] = weight[size_t(order[i])] / total;
  return p;
}

// `draws` draws with counters 0, 1, … against the exact distribution: nothing impossible, and every likely id
// as often as it should be within five standard deviations.
void expect_distribution(Backend& backend, const std::vector<float>& logits, SampleRow row, int draws = 4000) {
  const std::vector<double> p = exact_distribution(logits, row);
  constexpr int kBatch = 50;
  std::vector<float> batch;
  for (int i = 0; i < kBatch; ++i) batch.insert(batch.end(), logits.begin(), logits.end());
  std::vector<SampleRow> rows(kBatch, row);
  std::vector<SampleResult> results(kBatch);
  std::vector<int32_t> last(64);
  std::vector<int> count(logits.size());
  for (int i = 0; i < draws; i += kBatch) {
    for (int j = 0; j < kBatch; ++j) rows[size_t(j)].counter = uint64_t(i + j);
    auto copy = batch;
    backend.sample({view(copy, kBatch, int64_t(logits.size())), rows, results, last.data(), 0});
    for (const SampleResult& r : results) ++count[size_t(r.id)];
  }
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      ASSERT_EQ(count[i], 0) << "id " << i << " cannot be drawn";
    }
    if (p[i] * draws < 8) continue;
    ASSERT_NEAR(count[i], p[i] * draws, 5 * std::sqrt(p[i] * (1 - p[i]) * draws) + 1) << "id " << i;
  }
}

TEST(Philox, KnownAnswers) {  // of the Random123 distribution
  using Four = std::array<uint32_t, 4>;
  EXPECT_EQ(sampling::philox4x32({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(sampling::philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(sampling::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformFillsItsRange) {
  double sum = 0, low = 1, high = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = sampling::uniform(99, i);
    sum += u, low = std::min(low, u), high = std::max(high, u);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_GE(low, 0);
  EXPECT_LT(low, 0.001);
  EXPECT_LT(high, 1);
  EXPECT_GT(high, 0.999);
}

TEST_P(Sampling, GreedyTakesTheLowestOfEquals) {
  for (int vocab : {1, 7, 16, 49152, 100003}) {
    std::vector<float> x = random_values(size_t(vocab), 1);
    const int first = vocab / 2, second = vocab - 1;
    x[size_t(first)] = x[size_t(second)] = 100;
    SampleRow row;
    row.slot = 3;
    EXPECT_EQ(sample_one(x, row).id, first);
    EXPECT_EQ(last_ids_[3], first);
    EXPECT_EQ(last_ids_[2], -7);
  }
}

TEST_P(Sampling, BrokenLogitsStillGiveAnId) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (float bad : {nan, inf, -inf}) {
    for (float temperature : {0.0f, 1.0f}) {
      for (int kind = 0; kind < 3; ++kind) {
        SampleRow row = drawing(temperature);
        row.top_logprobs = 5;
        if (kind == 1) row.top_k = 5, row.top_p = 0.9f;
        if (kind == 2) row.min_p = 0.1f;
        std::vector<float> all(9000, bad);
        const int id = sample_one(all, row).id;
        EXPECT_TRUE(id >= 0 && id < 9000);
        std::vector<float> one = random_values(9000, 1);
        one[17] = bad;
        const SampleResult r = sample_one(one, row);
        EXPECT_TRUE(r.id >= 0 && r.id < 9000);
        EXPECT_EQ(r.id == 17, bad == inf);
      }
    }
  }
}

TEST_P(Sampling, PlainDrawsFollowTheModel) {
  expect_distribution(*backend_, random_values(20, 1, 2), drawing());
  expect_distribution(*backend_, random_values(9000, 2, 4), drawing(0.7f), 2000);
  expect_distribution(*backend_, std::vector<float>(20, 3.0f), drawing(2));
}

TEST_P(Sampling, FiltersKeepExactlyWhatTheyShould) {
  const auto peaked = random_values(9000, 5, 5), flat = random_values(9000, 6, 0.3f);
  for (const auto& x : {peaked, flat}) {
    for (int top_k : {0, 1, 50, 5000}) {
      for (float top_p : {1.0f, 0.9f, 0.3f, 0.0f}) {
        for (float min_p : {0.0f, 0.05f, 1.0f}) {
          SampleRow row = drawing(1.3f);
          row.top_k = top_k, row.top_p = top_p, row.min_p = min_p;
          SCOPED_TRACE(testing::Message() << "top_k " << top_k << " top_p " << top_p << " min_p " << min_p);
          expect_distribution(*backend_, x, row, 50);
        }
      }
    }
  }
}

TEST_P(Sampling, WideNucleusIsCutExactly) {
  const auto x = random_values(40000, 6, 1.5f);
  for (float top_p : {0.5f, 0.95f, 0.999f}) {
    SampleRow row = drawing(1.2f);
    row.top_p = top_p;
    SCOPED_TRACE(top_p);
    expect_distribution(*backend_, x, row, 400);
  }
  // Steps of 0.5, so that the cut falls among many equals: those with lower ids stay.
  auto steps = x;
  for (float& v : steps) v = std::round(v * 2) / 2;
  SampleRow row = drawing();
  row.top_p = 0.7f;
  expect_distribution(*backend_, steps, row, 400);
}

TEST_P(Sampling, FilteredFrequencies) {
  SampleRow row = drawing(0.8f);
  row.top_k = 12, row.top_p = 0.92f, row.min_p = 0.01f;
  expect_distribution(*backend_, random_values(3000, 8, 2.5f), row);
  row = drawing();
  row.top_p = 0.5f;
  expect_distribution(*backend_, random_values(3000, 9, 2.5f), row);
}

TEST_P(Sampling, AdjustmentsComeFirst) {
  auto x = random_values(100, 3, 2);
  const int32_t bias_ids[] = {4, 90};
  const float bias_values[] = {5, -100};
  const int32_t history[] = {1, 2, 3, 4, 4, 2, 7, 4};
  const int32_t banned[] = {0, 99};
  std::vector<uint32_t> mask = {~0u, 0xffffff00u, ~0u, 0xfu};
  SampleRow row = drawing(1.1f);
  row.bias_ids = bias_ids, row.bias_values = bias_values, row.bias_count = 2;
  expect_distribution(*backend_, x, row);
  row.history = history, row.history_prompt = 4, row.history_total = 8;
  row.repetition_penalty = 1.4f, row.frequency_penalty = 0.5f, row.presence_penalty = 0.7f;
  expect_distribution(*backend_, x, row);
  row.banned_ids = banned, row.banned_count = 2, row.mask = mask.data();
  expect_distribution(*backend_, x, row);
  row.top_k = 5;
  expect_distribution(*backend_, x, row);
}

TEST_P(Sampling, GreedyObeysMaskAndBans) {
  auto x = random_values(1000, 3);
  x[10] = 50, x[500] = 40, x[600] = 30;
  const int32_t banned[] = {10};
  std::vector<uint32_t> mask(32, 0);
  mask[600 / 32] = 1u << (600 % 32);
  SampleRow row;
  row.slot = 0;
  row.banned_ids = banned, row.banned_count = 1;
  EXPECT_EQ(sample_one(x, row).id, 500);
  row.mask = mask.data();
  EXPECT_EQ(sample_one(x, row).id, 600);
}

TEST_P(Sampling, LogprobsAreTheModelsOwn) {
  for (int vocab : {5, 100, 40000}) {
    auto x = random_values(size_t(vocab), 4, 3);
    x[1] = x[3];  // ranks of equals go by id
    double sum = 0;
    for (float v : x) sum += std::exp(double(v));
    std::vector<int> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[size_t(a)] > x[size_t(b)]; });
    const int32_t bias_ids[] = {2};
    const float bias_values[] = {1000};
    SampleRow row = drawing(0.5f);
    row.bias_ids = bias_ids, row.bias_values = bias_values, row.bias_count = 1;
    row.top_logprobs = 20;
    const SampleResult r = sample_one(x, row);
    EXPECT_EQ(r.id, 2);
    EXPECT_NEAR(r.logprob, x[2] - std::log(sum), 1e-4);
    EXPECT_EQ(order[size_t(r.rank)], 2);
    ASSERT_EQ(r.top_count, std::min(20, vocab));
    for (int i = 0; i < r.top_count; ++i) {
      EXPECT_EQ(r.top_ids[i], order[size_t(i)]);
      EXPECT_NEAR(r.top_logprobs[i], x[size_t(order[size_t(i)])] - std::log(sum), 1e-4);
    }
  }
}

TEST_P(Sampling, GivenIdsAreOnlyScored) {
  auto x = random_values(100, 4);
  SampleRow row;
  row.target_id = 42;
  const SampleResult r = sample_one(x, row);
  double sum = 0;
  for (float v : x) sum += std::exp(double(v));
  EXPECT_EQ(r.id, 42);
  EXPECT_NEAR(r.logprob, x[42] - std::log(sum), 1e-5);
  EXPECT_EQ(r.top_count, 0);
  EXPECT_EQ(last_ids_, std::vector<int32_t>(64, -7));
}

TEST_P(Sampling, SoftcapComesBeforeAll) {
  auto x = random_values(300, 4, 30);
  auto capped = x;
  for (float& v : capped) v = 5 * std::tanh(v / 5);
  double sum = 0;
  for (float v : capped) sum += std::exp(double(v));
  SampleRow row;
  row.target_id = 7;
  EXPECT_NEAR(sample(x, {row}, 5)[0].logprob, capped[7] - std::log(sum), 2e-5);
}

TEST_P(Sampling, SeedsNameTheDrawWhateverElseIsInTheBatch) {
  const int vocab = 30000;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  for (int i = 0; i < 12; ++i) {
    const auto x = random_values(size_t(vocab), uint32_t(i), 2);
    logits.insert(logits.end(), x.begin(), x.end());
    SampleRow row = drawing(i % 4 == 0 ? 0.0f : 1.0f);
    row.slot = i;
    row.seed = uint64_t(i) << 40 | 5;
    row.counter = uint64_t(i * 3);
    if (i % 3 == 1) row.top_k = 40;
    if (i % 3 == 2) row.top_p = 0.9f;
    if (i % 5 == 0) row.top_logprobs = 3;
    rows.push_back(row);
  }
  const auto together = sample(logits, rows);
  for (int i = 0; i < 12; ++i) {
    const std::vector<float> own(logits.begin() + long(i) * vocab, logits.begin() + long(i + 1) * vocab);
    const SampleResult alone = sample_one(own, rows[size_t(i)]);
    EXPECT_EQ(alone.id, together[size_t(i)].id) << i;
    EXPECT_EQ(alone.logprob, together[size_t(i)].logprob) << i;
  }
  const auto again = sample(logits, rows);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(again[size_t(i)].id, together[size_t(i)].id);
}

}  // namespace
}  // namespace sluice::test
