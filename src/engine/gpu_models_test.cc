// Whole tiny models on a card against their reference logits (made with transformers in float32), first step by
// step, then through the engine: recorded steps, two of them under way, sampling on the card.
//
// The checkpoints lie in the folder that SLUICE_GPU_CASES names, else in cases/tiny beside the program.
// SLUICE_GPU_DEVICE: another device than cuda (cpu, to try the test itself).
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/make_engine.h"
#include "engine/served_model.h"
#include "model/test_run.h"

namespace sluice {
namespace {

// limits.json of the shared cases: tiny, cuda; activations of eight bits beside weights of eight bits.
constexpr double kOfBf16 = 0.03, kOfEightBits = 0.06;

std::string device() {
  const char* named = std::getenv("SLUICE_GPU_DEVICE");
  return named ? named : "cuda";
}

std::filesystem::path cases_folder() {
  if (const char* named = std::getenv("SLUICE_GPU_CASES")) return named;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cases" / "tiny";
}

std::unique_ptr<Backend> open_device() {
  auto made = make_backend(device(), {.threads = 1, .instruction_set = {}});
  CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
  return std::move(*made);
}

double logprob(const std::vector<float>& logits, int32_t id) {
  double top = logits[0], sum = 0;
  for (float x : logits) top = std::max(top, double(x));
  for (float x : logits) sum += std::exp(x - top);
  return logits[size_t(id)] - top - std::log(sum);
}

double largest(const std::vector<float>& v) {
  double most = 0;
  for (float x : v) most = std::max(most, std::fabs(double(x)));
  return most;
}

class GpuModels : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return (cases_folder() / GetParam()).string(); }
  bool eight_bits() const { return std::string_view(GetParam()).starts_with("fp8"); }
  double tolerance() const { return eight_bits() ? kOfEightBits : kOfBf16; }
  nlohmann::json cases() const {
    std::ifstream in(folder() + "/reference.json");
    CHECK(in.good(), "the tiny cases are missing: set SLUICE_GPU_CASES");
    return nlohmann::json::parse(in).at("cases");
  }
};

TEST_P(GpuModels, LogitsAreTheReferences) {
  TestRun run(folder(), open_device());
  run.round_frequencies(eight_bits() ? DType::f16 : DType::bf16);
  int sequence = 0;
  double worst = 0;
  for (const auto& c : cases()) {
    const std::vector<int32_t> ids = c.at("prompt_ids");
    const std::vector<float> want = c.at("last_logits");
    const std::vector<double> logprobs = c.at("prompt_logprobs");
    const auto got = run.step({{sequence++, ids, int(ids.size())}});
    ASSERT_EQ(got.size(), ids.size());
    ASSERT_EQ(got.back().size(), want.size());
    for (size_t i = 0; i < want.size(); i++) {
      const double off = std::fabs(double(got.back()[i]) - want[i]) / largest(want);
      worst = std::isfinite(off) ? std::max(worst, off) : INFINITY;
    }
    double scale = 1;
    for (double lp : logprobs) scale = std::max(scale, std::fabs(lp));
    for (size_t i = 0; i < logprobs.size(); i++)
      EXPECT_NEAR(logprob(got[i], ids[i + 1]), logprobs[i], tolerance() * scale)
          << ids.size() << " tokens, " << i;
  }
  // Rounding activations to E4M3 is 2.6 % a product, and these small models add few up.
  EXPECT_LT(worst, eight_bits() ? 0.15 : tolerance());
  RecordProperty("worst_logit", std::to_string(worst));
  printf("  %-24s worst logit off by %.4f of the largest\n", GetParam(), worst);
}

// A prompt in pieces, and all prompts in one step (with sequences of one row among them), give what the prompt
// alone gives, up to the order of sums.
TEST_P(GpuModels, ChunksAndBatchesAgree) {
  TestRun alone(folder(), open_device()), chunked(folder(), open_device()), batched(folder(), open_device());
  std::vector<std::vector<float>> want;
  std::vector<TestRun::Chunk> all;
  int sequence = 0;
  const auto expect_near = [this](const std::vector<float>& got, const std::vector<float>& wanted,
                                  size_t tokens) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); i++)
      ASSERT_NEAR(got[i], wanted[i], tolerance() * largest(wanted)) << tokens << " tokens, logit " << i;
  };
  for (const auto& c : cases()) {
    const std::vector<int32_t> ids = c.at("prompt_ids");
    want.push_back(alone.step({{sequence, ids, 1}})[0]);
    all.push_back({sequence, ids, 1});
    std::vector<std::vector<float>> got;
    for (size_t at = 0, size = 1; at < ids.size(); at += size, size = size % 23 + 7) {
      const size_t end = std::min(ids.size(), at + size);
      got = chunked.step(
          {{sequence, {ids.begin() + ptrdiff_t(at), ids.begin() + ptrdiff_t(end)}, end == ids.size()}});
    }
    expect_near(got.at(0), want.back(), ids.size());
    sequence++;
  }
  const auto got = batched.step(all);
  ASSERT_EQ(got.size(), want.size());
  for (size_t s = 0; s < got.size(); s++) expect_near(got[s], want[s], all[s].ids.size());
}

// A client that waits for the engine's notices.
class Waiting {
 public:
  std::function<void()> notify() {
    return [this] {
      std::lock_guard lock(mutex_);
      rung_ = true;
      bell_.notify_one();
    };
  }
  std::vector<int32_t> read(RequestStream& stream) {
    std::vector<int32_t> ids;
    for (TokenEvent event;;) {
      while (stream.pop(event)) {
        if (event.id >= 0) ids.push_back(event.id);
        if (event.finish != FinishReason::none) return ids;
      }
      std::unique_lock lock(mutex_);
      bell_.wait(lock, [&] { return rung_; });
      rung_ = false;
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable bell_;
  bool rung_ = false;
};

std::vector<std::vector<int32_t>> through_the_engine(const std::string& folder, const nlohmann::json& cases,
                                                     size_t copies, bool graphs, const KvSettings& kv = {}) {
  LoadOptions options;
  options.path = folder;
  options.engine.kv = kv;
  options.device = device();
  options.engine.max_sequences = 24;
  options.engine.step_tokens = 64;
  options.engine.graphs = graphs;
  auto loaded = load_model(options, {});
  CHECK(loaded.ok(), loaded.ok() ? "" : loaded.error().message.c_str());
  Engine& engine = (*loaded)->engine();
  std::vector<std::shared_ptr<RequestStream>> streams;
  std::vector<std::unique_ptr<Waiting>> clients;
  for (size_t copy = 0; copy < copies; copy++) {
    for (const auto& c : cases) {
      Request wish;
      wish.prompt = c.at("prompt_ids").get<std::vector<int32_t>>();
      wish.sampling.temperature = 0;
      wish.max_tokens = int(c.at("greedy_ids").size());
      wish.ignore_eos = true;
      auto submitted =
          engine.submit(std::move(wish), clients.emplace_back(std::make_unique<Waiting>())->notify());
      CHECK(submitted.ok(), submitted.ok() ? "" : submitted.error().message.c_str());
      streams.push_back(std::move(*submitted));
    }
  }
  std::vector<std::vector<int32_t>> ids;
  for (size_t i = 0; i < streams.size(); i++) ids.push_back(clients[i]->read(*streams[i]));
  engine.drain(now_ns() + 1'000'000'000);
  return ids;
}

// Every id that came out was the likeliest, or as good as, by the logits that one step over the whole text
// gives.
void expect_supported(TestRun& judge, int sequence, const std::vector<int32_t>& prompt,
                      const std::vector<int32_t>& got, double tolerance) {
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), got.begin(), got.end() - 1);
  const auto logits = judge.step({{sequence, text, int(got.size())}});
  for (size_t k = 0; k < got.size(); k++) {
    const double best = logits[k][size_t(argmax(logits[k]))], chosen = logits[k][size_t(got[k])];
    ASSERT_GE(chosen, best - tolerance * largest(logits[k])) << "sequence " << sequence << ", token " << k;
  }
}

// Many copies of the prompts at once, so that batches grow and shrink through several buckets; with recorded
// steps and without.
TEST_P(GpuModels, GreedyThroughTheEngine) {
  const nlohmann::json all = cases();
  constexpr size_t kCopies = 9;
  // Where two experts are as good as equal, the order of sums decides which one a row goes to, and the whole
  // row is another: in these random models by 0.06 of the largest logit.
  const bool experts = std::string_view(GetParam()).find("moe") != std::string_view::npos;
  const double off_at_most = experts ? 4 * tolerance() : tolerance();
  for (const bool graphs : {true, false}) {
    const auto ids = through_the_engine(folder(), all, kCopies, graphs);
    TestRun judge(folder(), open_device());
    size_t compared = 0;
    for (size_t i = 0; i < ids.size(); i++) {
      const auto& c = all[i % all.size()];
      const std::vector<int32_t> want = c.at("greedy_ids");
      ASSERT_EQ(ids[i].size(), want.size());
      expect_supported(judge, int(i), c.at("prompt_ids"), ids[i], off_at_most);
      // The first choice that is too close to call ends the comparison: the texts may part there.
      const double close = 2 * tolerance() * largest(c.at("last_logits").get<std::vector<float>>());
      for (size_t k = 0; k < want.size() && double(c.at("greedy_margin").at(k)) > close; k++, compared++)
        ASSERT_EQ(ids[i][k], want[k]) << "request " << i << ", token " << k;
    }
    printf("  %-24s %zu ids supported, %zu equal to the reference's%s\n", GetParam(),
           ids.size() * ids[0].size(), compared, graphs ? "" : ", without recorded steps");
    EXPECT_GT(compared, 0u);
  }
}

// The same in every precision of the cache, with made-up weights, since heads of the tiny models are too narrow
// for it: prompts of several blocks, in chunks that read blocks which have been converted by then, then
// recorded steps between which more are.
TEST(GpuPrecisions, GreedyThroughTheEngine) {
  const std::string model = "dummy:smollm2-135m:bf16";
  nlohmann::json cases;
  for (const int length : {130, 200, 64, 190}) {
    nlohmann::json& c = cases.emplace_back();
    for (int i = 0; i < length; i++) c["prompt_ids"].push_back((i * 7919 + length) % 49152);
    c["greedy_ids"] = std::vector<int32_t>(50);
  }
  TestRun judge(model, open_device());
  int sequence = 0;
  for (const auto& [precision, tolerance] :
       {std::pair{"bf16", kOfBf16}, {"int8", 0.05}, {"fp8", 0.1}, {"int4", 0.2}, {"tiered", 0.2}}) {
    if (device() == "cpu" && precision == std::string("fp8")) continue;
    SCOPED_TRACE(precision);
    KvSettings kv;
    kv.precision = precision;
    kv.tier_full_tokens = 64, kv.tier_int8_tokens = 128;
    const auto ids = through_the_engine(model, cases, 2, true, kv);
    for (size_t i = 0; i < ids.size(); i++, sequence++) {
      const auto& c = cases[i % cases.size()];
      ASSERT_EQ(ids[i].size(), c.at("greedy_ids").size());
      expect_supported(judge, sequence, c.at("prompt_ids"), ids[i], tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, GpuModels,
                         testing::Values("llama-tied", "llama-untied-llama3rope", "mistral-window",
                                         "qwen2-bias-tied", "qwen3-qknorm", "gemma3-local-global",
                                         "mixtral-moe", "qwen3moe", "fp8-block128"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
