// Golden logits: every family on every backend against references made with transformers in float32.
#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "model/test_run.h"

namespace sluice {
namespace {

const std::string kCases = SLUICE_SOURCE_DIR "/../shared/cases/";

nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); i++) worst = std::max(worst, std::fabs(double(a[i]) - b[i]));
  return worst;
}

double largest(const std::vector<float>& v) {
  double most = 0;
  for (float x : v) most = std::max(most, std::fabs(double(x)));
  return most;
}

double logprob(const std::vector<float>& logits, int32_t id) {
  double top = logits[0], sum = 0;
  for (float x : logits) top = std::max(top, double(x));
  for (float x : logits) sum += std::exp(x - top);
  return logits[size_t(id)] - top - std::log(sum);
}

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "ref") return make_ref_backend();
  Result<std::unique_ptr<Backend>> made = make_cpu_backend({.threads = 2, .instruction_set = {}});
  CHECK(made.ok());
  return std::move(*made);
}

// How far a backend may be from the reference: logits relative to the largest, log-probabilities absolute.
struct Tolerance {
  double logits, logprobs;
};

class Tiny : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  std::string folder() const { return kCases + "tiny/" + std::get<1>(GetParam()); }
  nlohmann::json cases() const { return read_json(folder() + "/reference.json").at("cases"); }
  TestRun make_run() const { return TestRun(folder(), make_backend(backend())); }
  // As the models were when their references were made.
  TestRun make_run_as_made() const {
    TestRun run = make_run();
    run.round_frequencies(quantized() ? DType::f16 : DType::bf16);
    return run;
  }
  bool quantized() const { return read_json(folder() + "/config.json").contains("quantization_config"); }
  // Float noise on the judge. The CPU's cache is f16. Eight-bit floats become bf16 at load, shuffled groups
  // f16.
  Tolerance tolerance() const {
    const std::string tiny = std::get<1>(GetParam());
    if (tiny == "fp8-block128") return {6e-3, 2e-2};
    return backend() == "ref" && tiny != "gptq-actorder" ? Tolerance{2e-5, 1e-4} : Tolerance{2e-3, 1e-2};
  }
};

TEST_P(Tiny, LogitsAndLogprobsAreTheReferences) {
  TestRun run = make_run(), as_made = make_run_as_made();
  int sequence = 0;
  for (const auto& c : cases()) {
    const std::vector<int32_t> ids = c.at("prompt_ids");
    const std::vector<float> want = c.at("last_logits");
    const std::vector<double> logprobs = c.at("prompt_logprobs");
    const auto got = as_made.step({{sequence, ids, int(ids.size())}});
    ASSERT_EQ(got.size(), ids.size());
    ASSERT_EQ(got.back().size(), want.size());
    EXPECT_LT(max_difference(got.back(), want), tolerance().logits * largest(want)) << ids.size() << " tokens";
    for (size_t i = 0; i < logprobs.size(); i++)
      EXPECT_NEAR(logprob(got[i], ids[i + 1]), logprobs[i], tolerance().logprobs) << i;
    const auto exact = run.step({{sequence++, ids, int(ids.size())}});
    for (size_t i = 0; i < logprobs.size(); i++)
      EXPECT_NEAR(logprob(exact[i], ids[i + 1]), logprobs[i], 0.03) << i;
  }
}

// A prompt in pieces, four prompts in one step, and both at once give the same bits as the prompt alone.
TEST_P(Tiny, ChunksAndBatchesChangeNothing) {
  TestRun alone = make_run(), chunked = make_run(), batched = make_run();
  std::vector<std::vector<float>> want;
  std::vector<TestRun::Chunk> all;
  int sequence = 0;
  for (const auto& c : cases()) {
    const std::vector<int32_t> ids = c.at("prompt_ids");
    want.push_back(alone.step({{sequence, ids, 1}})[0]);
    all.push_back({sequence, ids, 1});
    std::vector<std::vector<float>> got;
    for (size_t at = 0, size = 1; at < ids.size(); at += size, size = size % 23 + 7) {
      const size_t end = std::min(ids.size(), at + size);
      const TestRun::Chunk chunk{
          sequence, {ids.begin() + ptrdiff_t(at), ids.begin() + ptrdiff_t(end)}, end == ids.size()};
      got = chunked.step({chunk});
    }
    EXPECT_EQ(got.at(0), want.back()) << "in pieces, " << ids.size() << " tokens";
    sequence++;
  }
  EXPECT_EQ(batched.step(all), want);
}

TEST_P(Tiny, FusedAndUnfusedGiveTheSameBits) {
  TestRun fused = make_run(), unfused(folder(), make_backend(backend()), false);
  const std::vector<int32_t> ids = cases().at(0).at("prompt_ids");
  EXPECT_EQ(unfused.step({{0, ids, 3}}), fused.step({{0, ids, 3}}));
}

TEST_P(Tiny, GreedyIdsAreTheReferences) {
  TestRun run = make_run_as_made();
  const nlohmann::json all = cases();
  std::vector<bool> open(all.size(), true);
  std::vector<TestRun::Chunk> chunks;
  for (size_t s = 0; s < all.size(); s++) chunks.push_back({int(s), all[s].at("prompt_ids"), 1});
  const size_t steps = all[0].at("greedy_ids").size();
  int compared = 0;
  for (size_t i = 0; i < steps; i++) {
    const auto logits = run.step(chunks);
    for (size_t s = 0; s < all.size(); s++) {
      const int32_t want = all[s].at("greedy_ids").at(i);
      const double margin = all[s].at("greedy_margin").at(i);
      if (open[s] && margin > 2 * tolerance().logits * largest(logits[s])) {
        EXPECT_EQ(argmax(logits[s]), want) << "case " << s << " step " << i;
        compared++;
      }
      open[s] = open[s] && argmax(logits[s]) == want;
      chunks[s] = {int(s), {want}, 1};
    }
  }
  EXPECT_GT(compared, int(all.size() * steps) / 2);
}

INSTANTIATE_TEST_SUITE_P(Families, Tiny,
                         testing::Combine(testing::Values("ref", "cpu"),
                                          testing::Values("llama-tied", "llama-untied-llama3rope",
                                                          "mistral-window", "qwen2-bias-tied", "qwen3-qknorm",
                                                          "gemma3-local-global", "gemma2-softcap", "phi3-fused",
                                                          "awq-g64", "gptq-g64", "gptq-actorder",
                                                          "fp8-block128", "mixtral-moe", "qwen3moe")),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + std::string("_") + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A step in which nobody asks for logits still fills the cache.
TEST(Decoder, AStepWithoutLogits) {
  TestRun one(kCases + "tiny/llama-tied", make_ref_backend()),
      two(kCases + "tiny/llama-tied", make_ref_backend());
  const auto want = one.step({{0, {5, 6, 7, 8}, 1}});
  EXPECT_TRUE(two.step({{0, {5, 6, 7}, 0}}).empty());
  EXPECT_EQ(two.step({{0, {8}, 1}}), want);
}

// The real GGUF files, teacher-forced along the reference's greedy continuations; bounds as the acceptance has
// them
// (`limits.json`) for backends that quantize activations, float noise for the judge.
struct Real {
  const char* backend;
  const char* model;
  const char* file;
  std::vector<std::string> ids;
  double margin, mean;
};

class RealModel : public testing::TestWithParam<Real> {};

TEST_P(RealModel, ContinuesAsTheReference) {
  const Real& p = GetParam();
  TestRun run(std::string(SLUICE_SOURCE_DIR "/models/") + p.file, make_backend(p.backend));
  std::ifstream in(kCases + "greedy/" + p.model + ".f32.given.jsonl");
  int sequence = 0, compared = 0;
  double sum = 0;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json c = nlohmann::json::parse(line);
    if (std::find(p.ids.begin(), p.ids.end(), c.at("id")) == p.ids.end()) continue;
    std::vector<int32_t> ids = c.at("prompt_ids");
    const std::vector<int32_t> next = c.at("gen_ids");
    constexpr size_t kSteps = 8;
    ids.insert(ids.end(), next.begin(), next.begin() + kSteps - 1);
    const auto logits = run.step({{sequence++, ids, int(kSteps)}});
    for (size_t i = 0; i < kSteps; i++) {
      const bool sure = double(c.at("margins").at(i)) > p.margin;
      EXPECT_TRUE(!sure || argmax(logits[i]) == next[i]) << c.at("id") << " " << i;
      const auto& top = c.at("top10").at(i);
      for (size_t k = 0; k < 10; k++) {
        const double want = top.at(1).at(k);
        if (want < -8) continue;
        sum += std::fabs(logprob(logits[i], top.at(0).at(k)) - want);
        compared++;
      }
    }
  }
  EXPECT_EQ(sequence, int(p.ids.size()));
  EXPECT_LT(sum / compared, p.mean);
  RecordProperty("mean_difference", std::to_string(sum / compared));
}

INSTANTIATE_TEST_SUITE_P(
    Files, RealModel,
    testing::Values(
        Real{"ref", "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1.gguf", {"g01"}, 0.02, 0.005},
        Real{"cpu",
             "SmolLM2-135M-Instruct",
             "SmolLM2-135M-Instruct.Q4_1.gguf",
             {"g01", "g05", "g09", "g29"},
             0.6,
             0.11},
        Real{"cpu", "gemma-3-270m", "gemma-3-270m-q4_k_m.gguf", {"g01", "g05", "g24"}, 1.2, 0.15}),
    [](const auto& info) {
      return std::string(info.param.backend) + (info.param.model[0] == 'S' ? "_smollm2" : "_gemma3");
    });

}  // namespace
}  // namespace sluice
