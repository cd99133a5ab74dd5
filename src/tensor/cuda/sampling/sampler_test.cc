// The sampler against the definition (tensor/sampling.cc, through the judge's Backend::sample) on the same
// logits. Ids must be equal; of random rows they may differ only where the draw's number lies within 1e-5 of
// the boundary between two ids, since sums of the two differ in their last bits.
#include "tensor/cuda/sampling/sampler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"
#include "tensor/sampling.h"

namespace sluice::cuda::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kSlotsOfIds = 512;
constexpr int32_t kUntouched = -7;

// What the rows' wishes point to lives here.
struct Lists {
  std::vector<int32_t> bias_ids, banned, history;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;
};

class SamplerTest : public testing::Test {
 protected:
  void open(int vocab, int max_rows = 256) {
    vocab_ = vocab;
    sampler_ = make_sampler();
    WorkspaceShape shape{.max_tokens = 512,
                         .max_sequences = 256,
                         .max_context = 4096,
                         .vocab = vocab,
                         .max_logit_rows = max_rows,
                         .kv = {}};
    ASSERT_TRUE(sampler_->reserve(shape, context(), backend_).ok());
    results_ = backend_.alloc_host(512 * sizeof(SampleResult));
    last_ids_.emplace(upload(std::vector<int32_t>(kSlotsOfIds, kUntouched)));
  }

  std::span<SampleResult> results(int rows) { return {results_.as<SampleResult>(), size_t(rows)}; }

  SampleArgs args(const DeviceBytes& logits, int rows, float softcap, int slot = 0, int first_row = 0) {
    SampleArgs a{};
    a.logits = Tensor{logits.data(), DType::f32, rows, vocab_, vocab_};
    a.results = results(512).subspan(size_t(first_row), size_t(rows));
    a.last_ids = last_ids_->as<int32_t>();
    a.softcap = softcap;
    a.slot = slot;
    a.first_row = first_row;
    return a;
  }

  std::vector<SampleResult> sample(const std::vector<float>& logits, const std::vector<SampleRow>& rows,
                                   float softcap = 0) {
    const DeviceBytes device = upload(logits);
    const int n = int(rows.size());
    std::memset(results_.data(), 0xee, results_.bytes());
    sampler_->stage(0, rows, n, context().stream);
    sampler_->run(args(device, n, softcap));
    wait();
    return {results(n).begin(), results(n).end()};
  }

  std::vector<SampleResult> judged(std::vector<float> logits, const std::vector<SampleRow>& rows,
                                   float softcap = 0) {
    std::vector<SampleResult> results(rows.size());
    std::vector<int32_t> last(kSlotsOfIds);
    judge_->sample({f32_tensor(logits, int64_t(rows.size()), vocab_), rows, results, last.data(), softcap});
    return results;
  }

  // Compares row by row; counts random rows and those whose ids differ for a boundary's sake.
  void compare(const std::vector<float>& logits, const std::vector<SampleRow>& rows, float softcap = 0) {
    const auto got = sample(logits, rows, softcap), want = judged(logits, rows, softcap);
    const auto last = download<int32_t>(last_ids_->data(), kSlotsOfIds);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(testing::Message() << describe(rows[i]) << " row " << i << " vocab " << vocab_);
      const float* x = logits.data() + i * size_t(vocab_);
      compare_row(got[i], want[i], rows[i], std::span(x, size_t(vocab_)));
      if (rows[i].slot >= 0) {
        EXPECT_EQ(last[size_t(rows[i].slot)], got[i].id);
      }
    }
  }

  static std::string describe(const SampleRow& r) {
    return (testing::Message() << "slot " << r.slot << " T " << r.temperature << " k " << r.top_k << " p "
                               << r.top_p << " min " << r.min_p << " bias " << r.bias_count << " bans "
                               << r.banned_count << " history " << r.history_total << " mask "
                               << (r.mask != nullptr) << " top " << r.top_logprobs << " target " << r.target_id)
        .GetString();
  }

  void compare_row(const SampleResult& got, const SampleResult& want, const SampleRow& row,
                   std::span<const float> x) {
    const bool random = row.slot >= 0 && row.temperature > 0;
    random_ += random;
    if (random && got.id != want.id) {
      ++moved_;
      EXPECT_LT(distance_to_boundary(got.id, row, x), 1e-5) << "got " << got.id << " want " << want.id;
      return;
    }
    ASSERT_EQ(got.id, want.id);
    const auto near = [](float a, float b) { return std::abs(a - b) <= 1e-4f + 1e-6f * std::abs(b); };
    EXPECT_TRUE(near(got.logprob, want.logprob)) << got.logprob << " " << want.logprob;
    EXPECT_EQ(got.rank, want.rank);
    ASSERT_EQ(got.top_count, want.top_count);
    for (int i = 0; i < got.top_count; ++i) {
      EXPECT_EQ(got.top_ids[i], want.top_ids[i]) << i;
      EXPECT_TRUE(near(got.top_logprobs[i], want.top_logprobs[i]))
          << i << ": " << got.top_logprobs[i] << " " << want.top_logprobs[i];
    }
  }

  // How far the row's random number is from the part of [0, 1) that belongs to `id`; 1 where none does.
  static double distance_to_boundary(int id, const SampleRow& r, std::span<const float> logits) {
    const std::vector<double> p = distribution(logits, r);
    if (id < 0 || id >= int(p.size()) || p[size_t(id)] == 0) return 1;
    const double from = std::accumulate(p.begin(), p.begin() + id, 0.0), to = from + p[size_t(id)];
    const double u = sampling::uniform(r.seed, r.counter);
    return std::max({0.0, from - u, u - to});
  }

  // Probability of every id by sorting the vocabulary.
  static std::vector<double> distribution(std::span<const float> logits, const SampleRow& r) {
    std::vector<float> x(logits.begin(), logits.end());
    for (int i = 0; i < r.bias_count; ++i) x[size_t(r.bias_ids[i])] += r.bias_values[i];
    std::map<int, int> generated;
    for (int i = 0; i < r.history_total; ++i) generated[r.history[i]] += i >= r.history_prompt;
    for (auto [id, count] : generated) {
      float& v = x[size_t(id)];
      v = v > 0 ? v / r.repetition_penalty : v * r.repetition_penalty;
      v -= r.frequency_penalty * float(count);
      if (count > 0) v -= r.presence_penalty;
    }
    for (int i = 0; i < r.banned_count; ++i) x[size_t(r.banned_ids[i])] = -kInf;
    for (size_t i = 0; r.mask && i < x.size(); ++i) {
      if (!(r.mask[i / 32] >> (i % 32) & 1)) x[i] = -kInf;
    }
    std::vector<int> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[size_t(a)] > x[size_t(b)]; });
    const double max = x[size_t(order[0])];
    std::vector<double> weight(x.size()), p(x.size(), 0);
    for (size_t i = 0; i < x.size(); ++i) weight[i] = std::exp((double(x[i]) - max) / double(r.temperature));
    size_t keep = x.size();
    while (r.min_p > 0 && weight[size_t(order[keep - 1])] < double(r.min_p)) --keep;
    if (r.top_k > 0) keep = std::min(keep, size_t(r.top_k));
    double total = 0, sum = 0;
    for (size_t i = 0; i < keep; ++i) total += weight[size_t(order[i])];
    for (size_t i = 0; i < keep && r.top_p < 1; ++i) {
      sum += weight[size_t(order[i])];
      if (sum >= double(r.top_p) * total) keep = i + 1, total = sum;
    }
    for (size_t i = 0; i < keep; ++i) p[size_t(order[i])] = weight[size_t(order[i])] / total;
    return p;
  }

  std::vector<float> normal(size_t n, float sigma) {
    std::normal_distribution<float> d(0, sigma);
    std::vector<float> v(n);
    for (float& x : v) x = d(rng_);
    return v;
  }
  int below(int n) { return int(rng_() % uint32_t(n)); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(int(values.size()))];
  }

  SampleRow drawing(int slot = 0) {
    SampleRow r;
    r.slot = slot;
    r.temperature = 1;
    r.seed = rng_();
    r.counter = uint64_t(below(5000));
    return r;
  }
  SampleRow filtered(int slot) {
    SampleRow r = drawing(slot);
    r.temperature = one_of({0.5f, 0.8f, 1.0f, 1.3f});
    r.top_k = one_of({0, 0, 1, 40, 1000});
    r.top_p = one_of({1.0f, 0.1f, 0.9f, 0.999f});
    r.min_p = one_of({0.0f, 0.0f, 0.0f, 0.05f, 0.5f});
    return r;
  }
  // Anything at all.
  SampleRow any_row(int slot, Lists& lists) {
    SampleRow r = below(3) ? filtered(slot) : drawing(slot);
    if (below(3) == 0) r.temperature = 0;
    if (below(4) == 0) r.top_logprobs = one_of({0, 1, 5, 20});
    if (below(8) == 0) r.slot = -1, r.target_id = below(vocab_);
    if (below(12) == 0) r.slot = -1, r.target_id = r.top_logprobs = -1;
    if (r.slot < 0 || below(2)) return r;
    adjust(r, lists);
    return r;
  }
  void adjust(SampleRow& r, Lists& lists) {
    if (below(2)) {
      for (int i = 0, id = below(50); i < 20 && id < vocab_; ++i, id += 1 + below(vocab_ / 20)) {
        lists.bias_ids.push_back(id), lists.bias_values.push_back(float(below(21)) - 10);
      }
      r.bias_ids = lists.bias_ids.data(), r.bias_values = lists.bias_values.data();
      r.bias_count = int(lists.bias_ids.size());
    }
    if (below(2)) {
      for (int i = 0; i < 3000; ++i) lists.history.push_back(below(below(2) ? vocab_ : 300));
      r.history = lists.history.data(), r.history_total = 3000, r.history_prompt = below(3001);
      r.repetition_penalty = one_of({1.0f, 1.2f, 0.8f});
      r.frequency_penalty = one_of({0.0f, 0.3f, -0.2f});
      r.presence_penalty = one_of({0.0f, 0.5f});
    }
    if (below(2)) {
      for (int i = 0; i < 5; ++i) lists.banned.push_back(below(vocab_));
      r.banned_ids = lists.banned.data(), r.banned_count = 5;
    }
    if (below(2)) {
      lists.mask.resize(size_t(vocab_ + 31) / 32);
      for (uint32_t& w : lists.mask) w = below(3) ? uint32_t(rng_()) & uint32_t(rng_()) : ~0u;
      r.mask = lists.mask.data();
    }
  }

  void expect_few_moved() {
    std::printf("    %d of %d random ids differ at a boundary\n", moved_, random_);
    EXPECT_LE(moved_, std::max(1, random_ / 200));
  }

  std::mt19937 rng_{20261130};
  MemoryBackend backend_;
  std::unique_ptr<Backend> judge_ = make_ref_backend();
  std::unique_ptr<Sampler> sampler_;
  Buffer results_;
  std::optional<DeviceBytes> last_ids_;
  int vocab_ = 0;
  int random_ = 0, moved_ = 0;
};

TEST_F(SamplerTest, GreedyTakesTheLowestOfEquals) {
  for (int vocab : {1, 5, 33, 384, 8191, 49152, 128256, 151643, 262144}) {
    open(vocab);
    for (int rows : {1, 7}) {
      auto x = normal(size_t(rows) * size_t(vocab), 1);
      for (float& v : x) v = std::round(v * 2) / 2;
      std::vector<SampleRow> wishes;
      for (int i = 0; i < rows; ++i) wishes.emplace_back().slot = 3 * i;
      compare(x, wishes);
    }
  }
}

TEST_F(SamplerTest, GreedyManyRows) {
  for (int rows : {33, 256}) {
    open(49152);
    std::vector<SampleRow> wishes;
    for (int i = 0; i < rows; ++i) wishes.emplace_back().slot = rows - i;
    compare(normal(size_t(rows) * 49152, 2), wishes);
  }
}

TEST_F(SamplerTest, BrokenLogitsStillGiveAnId) {
  open(9000);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
    for (float temperature : {0.0f, 1.0f}) {
      for (int kind = 0; kind < 3; ++kind) {
        SampleRow row = drawing();
        row.temperature = temperature;
        row.top_logprobs = 5;
        if (kind == 1) row.top_k = 5, row.top_p = 0.9f;
        if (kind == 2) row.min_p = 0.1f;
        const int id = sample(std::vector<float>(9000, bad), {row})[0].id;
        EXPECT_TRUE(id >= 0 && id < 9000) << id;
        auto one = normal(9000, 1);
        one[17] = bad;
        const SampleResult r = sample(one, {row})[0];
        EXPECT_TRUE(r.id >= 0 && r.id < 9000) << r.id;
        EXPECT_EQ(r.id == 17, bad == kInf);
      }
    }
  }
}

TEST_F(SamplerTest, PlainDrawsNameTheSameIds) {
  for (int vocab : {384, 49152, 128256, 262144}) {
    open(vocab);
    for (float sigma : {1.0f, 4.0f}) {
      const int rows = 33;
      std::vector<SampleRow> wishes;
      for (int i = 0; i < rows; ++i)
        wishes.push_back(drawing(i)), wishes.back().temperature = one_of({0.7f, 1.0f});
      compare(normal(size_t(rows) * size_t(vocab), sigma), wishes);
    }
  }
  expect_few_moved();
}

TEST_F(SamplerTest, FiltersKeepTheSameIds) {
  for (int vocab : {384, 49152, 128256, 262144}) {
    open(vocab);
    for (float sigma : {0.5f, 2.0f, 5.0f}) {
      const int rows = vocab > 130000 ? 33 : 64;
      std::vector<SampleRow> wishes;
      for (int i = 0; i < rows; ++i) wishes.push_back(filtered(i));
      auto x = normal(size_t(rows) * size_t(vocab), sigma);
      if (sigma == 2.0f) {  // many equals, also at the cuts
        for (float& v : x) v = std::round(v * 4) / 4;
      }
      compare(x, wishes);
    }
  }
  expect_few_moved();
}

TEST_F(SamplerTest, AllEqualAndAllButSomeForbidden) {
  open(49152);
  std::vector<SampleRow> wishes;
  std::vector<float> x;
  for (int i = 0; i < 32; ++i) {
    wishes.push_back(filtered(i));
    std::vector<float> row(49152, i % 2 ? 3.25f : -kInf);
    if (i % 2 == 0) {
      for (int j = 0; j < 500; ++j) row[size_t(below(49152))] = float(below(5));
    }
    x.insert(x.end(), row.begin(), row.end());
  }
  compare(x, wishes);
}

TEST_F(SamplerTest, AnyMixtureOfWishes) {
  for (int vocab : {384, 5003, 128256}) {
    open(vocab);
    for (int round = 0; round < 3; ++round) {
      const int rows = round == 0 ? 7 : vocab > 100000 ? 64 : 200;
      std::vector<Lists> lists(static_cast<size_t>(rows));
      std::vector<SampleRow> wishes;
      for (int i = 0; i < rows; ++i) wishes.push_back(any_row(i, lists[size_t(i)]));
      auto x = normal(size_t(rows) * size_t(vocab), round == 1 ? 1.5f : 4.0f);
      if (round == 2) {
        for (float& v : x) v = below(50) ? std::round(v * 16) / 16 : -kInf;
      }
      // Rows that want nothing are not written: the judge gives those the value of a fresh result.
      const auto got = sample(x, wishes);
      for (size_t i = 0; i < wishes.size(); ++i) {
        if (wishes[i].slot >= 0 || sampling::wants_logprobs(wishes[i])) continue;
        EXPECT_EQ(got[i].id, int32_t(0xeeeeeeee));
        wishes[i].target_id = 1;
      }
      compare(x, wishes);
    }
  }
  expect_few_moved();
}

TEST_F(SamplerTest, SoftcapComesBeforeAll) {
  open(30000);
  std::vector<SampleRow> wishes(4);
  wishes[0].target_id = 7, wishes[0].top_logprobs = 3;
  wishes[1].slot = 1;
  wishes[2].slot = 2, wishes[2].top_logprobs = 0;
  wishes[3] = drawing(3), wishes[3].top_k = 3;
  auto x = normal(4 * 30000, 3);
  compare(x, wishes, 5);
}

TEST_F(SamplerTest, DrawsFollowTheDistribution) {
  open(384);
  const int rows = 256, batches = 40, draws = rows * batches;
  const auto own = normal(384, 2);
  std::vector<float> x;
  for (int i = 0; i < rows; ++i) x.insert(x.end(), own.begin(), own.end());
  for (int kind = 0; kind < 3; ++kind) {
    SampleRow wish = drawing();
    if (kind == 1) wish.top_p = 0.8f;
    if (kind == 2) wish.top_k = 12, wish.temperature = 1.5f;
    std::vector<int> count(384);
    for (int b = 0; b < batches; ++b) {
      std::vector<SampleRow> wishes(size_t(rows), wish);
      for (int i = 0; i < rows; ++i)
        wishes[size_t(i)].counter = uint64_t(b * rows + i), wishes[size_t(i)].slot = i;
      for (const SampleResult& r : sample(x, wishes)) ++count[size_t(r.id)];
    }
    const auto p = distribution(own, wish);
    for (size_t i = 0; i < p.size(); ++i) {
      if (p[i] == 0) {
        EXPECT_EQ(count[i], 0) << i;
      } else {
        EXPECT_NEAR(count[i], p[i] * draws, 5 * std::sqrt(p[i] * (1 - p[i]) * draws) + 1) << i;
      }
    }
  }
}

// One record, replayed with other wishes in the same slot, for parts of a step's rows, with padding.
TEST_F(SamplerTest, ARecordServesAnyWishes) {
  open(128256, 16);
  const int rows = 16, first = 16;
  const auto x = normal(size_t(rows) * 128256, 3);
  const DeviceBytes device = upload(x);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  sampler_->stage(1, {}, 32, context().stream);
  wait();
  CUDA_CHECK(cudaStreamBeginCapture(context().stream, cudaStreamCaptureModeThreadLocal));
  sampler_->run(args(device, rows, 0, 1, first));
  CUDA_CHECK(cudaStreamEndCapture(context().stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 6; ++round) {
    const int staged = 32 - round;  // the rest is padding
    std::vector<Lists> lists(32);
    std::vector<SampleRow> wishes;
    for (int i = 0; i < staged; ++i) wishes.push_back(any_row(i, lists[size_t(i)]));
    std::memset(results_.data(), 0xee, results_.bytes());
    sampler_->stage(1, wishes, 32, context().stream);
    CUDA_CHECK(cudaGraphLaunch(exec, context().stream));
    wait();
    std::vector<SampleRow> part(wishes.begin() + first, wishes.end());
    part.resize(size_t(rows));
    const auto want = judged(x, part);
    for (int i = 0; i < 32; ++i) {
      const SampleResult& got = results(32)[size_t(i)];
      const SampleRow wish = i < staged ? wishes[size_t(i)] : SampleRow{};
      SCOPED_TRACE(testing::Message() << "round " << round << " row " << i << ": " << describe(wish));
      if (i < first || (wish.slot < 0 && !sampling::wants_logprobs(wish)))
        EXPECT_EQ(got.id, int32_t(0xeeeeeeee));
      else
        compare_row(got, want[size_t(i - first)], wish,
                    std::span(x).subspan(size_t(i - first) * 128256, 128256));
    }
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

// Bit for bit, alone and among others.
TEST_F(SamplerTest, RowsDoNotDependOnEachOther) {
  open(49152);
  const int rows = 40;
  const auto x = normal(size_t(rows) * 49152, 2);
  std::vector<SampleRow> wishes;
  for (int i = 0; i < rows; ++i) wishes.push_back(filtered(i)), wishes.back().top_logprobs = 20;
  const auto together = sample(x, wishes);
  for (int i = 0; i < rows; i += 3) {
    const std::vector<float> own(x.begin() + long(i) * 49152, x.begin() + long(i + 1) * 49152);
    const SampleResult alone = sample(own, {wishes[size_t(i)]})[0];
    EXPECT_EQ(std::memcmp(&alone, &together[size_t(i)], sizeof alone), 0) << i;
  }
}

}  // namespace
}  // namespace sluice::cuda::test
