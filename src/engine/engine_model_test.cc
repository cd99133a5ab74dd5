// The engine on real arithmetic: the tiny checkpoints with their reference, and SmolLM2's quantized weights.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <iterator>

#include "engine/allocation_counter.h"
#include "engine/make_engine.h"
#include "engine/replaying_backend.h"
#include "engine/test_client.h"
#include "model/checkpoint.h"

namespace sluice {
namespace {

std::string tiny(const std::string& name) {
  return std::string(SLUICE_SOURCE_DIR) + "/../shared/cases/tiny/" + name;
}
std::string smol() { return std::string(SLUICE_SOURCE_DIR) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf"; }

// Weights on a backend, and engines over them.
struct Loaded {
  std::unique_ptr<Backend> backend;
  ModelSpec spec;
  Weights weights;
  std::unique_ptr<Engine> engine;

  Loaded(const std::string& path, bool reference) : Loaded(path, reference ? make_ref_backend() : cpu()) {}
  Loaded(const std::string& path, std::unique_ptr<Backend> on) : backend(std::move(on)) {
    auto checkpoint = open_checkpoint(path);
    CHECK(checkpoint.ok(), checkpoint.ok() ? "" : checkpoint.error().message.c_str());
    spec = (*checkpoint)->spec();
    auto loaded = load_weights(**checkpoint, spec, *backend, [](size_t, size_t) {});
    CHECK(loaded.ok(), loaded.ok() ? "" : loaded.error().message.c_str());
    weights = std::move(*loaded);
  }
  void start(const EngineConfig& config) {
    engine.reset();
    auto made = make_engine({spec, weights, *backend, {}}, config);
    CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
    engine = std::move(*made);
  }
  ~Loaded() { engine.reset(); }
  static std::unique_ptr<Backend> cpu() {
    auto made = make_cpu_backend({.threads = 2, .instruction_set = ""});
    CHECK(made.ok());
    return std::move(*made);
  }
};

struct Case {
  std::vector<int32_t> prompt, greedy;
  std::vector<double> margins, prompt_logprobs, last_logits;
  double scale = 0;  // largest |logit|
};

std::vector<Case> cases(const std::string& folder) {
  std::ifstream in(folder + "/reference.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  simdjson::dom::parser parser;
  std::vector<Case> out;
  const simdjson::dom::element root = parser.parse(text).value();
  const simdjson::dom::array list = root["cases"].get_array().value();
  for (const simdjson::dom::element e : list) {
    Case c;
    for (const simdjson::dom::element v : e["prompt_ids"]) c.prompt.push_back(int32_t(int64_t(v)));
    for (const simdjson::dom::element v : e["greedy_ids"]) c.greedy.push_back(int32_t(int64_t(v)));
    for (const simdjson::dom::element v : e["greedy_margin"]) c.margins.push_back(double(v));
    for (const simdjson::dom::element v : e["prompt_logprobs"]) c.prompt_logprobs.push_back(double(v));
    for (const simdjson::dom::element v : e["last_logits"]) c.last_logits.push_back(double(v));
    for (const double v : c.last_logits) c.scale = std::max(c.scale, std::abs(v));
    out.push_back(std::move(c));
  }
  return out;
}

Request greedy(std::vector<int32_t> prompt, int tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = tokens;
  r.sampling.temperature = 0;
  r.sampling.top_logprobs = 3;
  r.sampling.prompt_top_logprobs = 0;
  return r;
}

// ids and log-probabilities of a finished request, prompt's included; compared with ==, so bit for bit.
struct Outcome {
  std::vector<int32_t> ids;
  std::vector<float> logprobs, prompt_logprobs, pooled;
  int preemptions = 0;
  bool operator==(const Outcome& o) const {
    return ids == o.ids && logprobs == o.logprobs && prompt_logprobs == o.prompt_logprobs && pooled == o.pooled;
  }
};
Outcome outcome(TestClient& client) {
  CHECK(client.stream != nullptr, client.error.message.c_str());
  client.finish();
  Outcome o{client.ids, client.logprobs, {}, client.stream->pooled(), client.stream->times().preemptions};
  for (const TokenLogprobs& l : client.stream->prompt_logprobs()) o.prompt_logprobs.push_back(l.logprob);
  return o;
}

class TinyModel : public testing::TestWithParam<const char*> {};

// All cases of a folder at once, in small chunks, two steps in flight.
TEST_P(TinyModel, GreedyEqualsTheReference) {
  const std::string folder = tiny(GetParam());
  Loaded model(folder, true);
  model.start({.max_sequences = 4, .step_tokens = 16, .block_tokens = 8, .max_context = 256, .logit_rows = 5});
  const std::vector<Case> all = cases(folder);
  ASSERT_FALSE(all.empty());
  std::deque<TestClient> clients;
  for (const Case& c : all) clients.emplace_back(*model.engine, greedy(c.prompt, int(c.greedy.size())));
  for (size_t k = 0; k < all.size(); ++k) {
    const Outcome got = outcome(clients[k]);
    const double tolerance = 5e-3 * all[k].scale;  // ../shared/cases/limits.json asks for twice that
    ASSERT_EQ(got.prompt_logprobs.size(), all[k].prompt_logprobs.size());
    for (size_t i = 0; i < got.prompt_logprobs.size(); ++i)
      EXPECT_NEAR(got.prompt_logprobs[i], all[k].prompt_logprobs[i], 2 * tolerance)
          << "case " << k << " token " << i;
    for (size_t i = 0; i < got.ids.size(); ++i) {
      if (got.ids[i] == all[k].greedy[i]) continue;
      EXPECT_LT(all[k].margins[i], 2 * tolerance) << "case " << k << " position " << i;
      break;
    }
  }
}

std::vector<float> pooled(Engine& engine, std::vector<int32_t> prompt, Pooling pooling) {
  Request r;
  r.prompt = std::move(prompt);
  r.pooling = pooling;
  TestClient client(engine, std::move(r));
  client.finish();
  EXPECT_EQ(client.reason, FinishReason::length);
  EXPECT_TRUE(client.ids.empty() && client.stream->prompt_logprobs().empty());
  return client.stream->pooled();
}

// The last token's state times the output matrix is the reference's last logits; the mean is that over every
// prefix's last state, since a causal model's states do not know what follows.
TEST_P(TinyModel, PooledStatesEqualTheReference) {
  const std::string folder = tiny(GetParam());
  Loaded model(folder, true);
  model.start({.max_sequences = 4, .step_tokens = 16, .block_tokens = 8, .max_context = 256, .logit_rows = 5});
  const Case c = cases(folder).front();
  const size_t width = size_t(model.spec.hidden);
  std::vector<float> last = pooled(*model.engine, c.prompt, Pooling::last);
  ASSERT_EQ(last.size(), width);
  std::vector<float> logits(size_t(model.spec.vocab));
  model.backend->linear({{last.data(), DType::f32, 1, int64_t(width), int64_t(width)},
                         model.weights.output(),
                         nullptr,
                         {logits.data(), DType::f32, 1, int64_t(logits.size()), int64_t(logits.size())}});
  const double softcap = model.spec.final_softcap;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double logit = softcap > 0 ? softcap * std::tanh(logits[i] / softcap) : logits[i];
    ASSERT_NEAR(logit, c.last_logits[i], 5e-3 * c.scale) << i;
  }

  const std::vector<float> mean = pooled(*model.engine, c.prompt, Pooling::mean);
  std::vector<double> sum(width);
  for (size_t n = 1; n <= c.prompt.size(); ++n) {
    const auto state =
        pooled(*model.engine, {c.prompt.begin(), c.prompt.begin() + std::ptrdiff_t(n)}, Pooling::last);
    for (size_t i = 0; i < width; ++i) sum[i] += state[i];
  }
  for (size_t i = 0; i < width; ++i) ASSERT_NEAR(mean[i], sum[i] / double(c.prompt.size()), 1e-3) << i;
}

INSTANTIATE_TEST_SUITE_P(Families, TinyModel,
                         testing::Values("llama-tied", "llama-untied-llama3rope", "mistral-window",
                                         "qwen2-bias-tied", "qwen3-qknorm", "gemma3-local-global"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// 16 requests of all kinds.
std::vector<Request> mixed(int vocab, int longest_prompt, int tokens) {
  std::vector<Request> out;
  for (int i = 0; i < 16; ++i) {
    std::vector<int32_t> prompt;
    const int length = 1 + (i * 37) % longest_prompt;
    for (int t = 0; t < length; ++t)
      prompt.push_back(int32_t((uint32_t(i + 1) * 2654435761u + uint32_t(t) * 40503u) % uint32_t(vocab)));
    Request r = greedy(std::move(prompt), 1 + (i * 7) % tokens);
    if (i % 3 == 1) r.sampling.temperature = 0.8f, r.sampling.seed = uint64_t(i), r.sampling.top_p = 0.9f;
    if (i % 5 == 2) r.sampling.repetition_penalty = 1.3f, r.sampling.presence_penalty = 0.2f;
    if (i % 4 == 3) r.sampling.prompt_top_logprobs = -1;
    out.push_back(std::move(r));
  }
  return out;
}

void expect_together_as_alone(const std::string& path, int longest_prompt, int tokens) {
  Loaded model(path, false);
  model.start({.max_sequences = 16, .step_tokens = 64, .max_context = 512, .logit_rows = 8});
  const std::vector<Request> wishes = mixed(model.spec.vocab, longest_prompt, tokens);
  std::vector<Outcome> alone;
  for (const Request& r : wishes) {
    TestClient client(*model.engine, r);
    alone.push_back(outcome(client));
  }
  std::deque<TestClient> together;
  for (const Request& r : wishes) together.emplace_back(*model.engine, r);
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Outcome got = outcome(together[i]);
    EXPECT_EQ(got.ids, alone[i].ids) << "request " << i;
    EXPECT_TRUE(got == alone[i]) << "request " << i << ": log-probabilities differ in some bit";
  }
}

TEST(Batching, TogetherAsAloneBitForBit) {
  expect_together_as_alone(tiny("llama-tied"), 200, 40);
  expect_together_as_alone(tiny("gemma3-local-global"), 200, 40);
}

TEST(Batching, TogetherAsAloneOnQuantizedWeights) { expect_together_as_alone(smol(), 30, 8); }

TEST(Batching, PreemptedAsUndisturbed) {
  for (const char* name : {"llama-tied", "gemma3-local-global"}) {
    Loaded model(tiny(name), false);
    EngineConfig config{.max_sequences = 16, .step_tokens = 32, .max_context = 200};
    model.start(config);
    std::vector<Request> wishes = mixed(model.spec.vocab, 60, 100);
    for (Request& r : wishes) r.max_tokens = 100;
    std::vector<Outcome> alone;
    for (const Request& r : wishes) {
      TestClient client(*model.engine, r);
      alone.push_back(outcome(client));
    }
    const size_t block_bytes = model.engine->info().kv_bytes / size_t(model.engine->info().blocks);
    config.kv_bytes = block_bytes * (model.spec.window ? 120 : 30);
    model.start(config);
    int preemptions = 0;
    std::deque<TestClient> together;
    for (const Request& r : wishes) together.emplace_back(*model.engine, r);
    for (size_t i = 0; i < wishes.size(); ++i) {
      const Outcome got = outcome(together[i]);
      EXPECT_TRUE(got == alone[i]) << name << " request " << i;
      preemptions += got.preemptions;
    }
    EXPECT_GT(preemptions, 0) << name;
    model.engine->drain(now_ns() + 60'000'000'000);
    EXPECT_EQ(model.engine->status().blocks_used, 0);
  }
}

// Conversations over few beginnings, in two rounds: whole blocks, parts of blocks, other salts, and with little
// memory preemption and eviction too. What is found in the cache answers as what is computed.
TEST(PrefixCache, OnAsOffBitForBit) {
  for (const auto& [path, blocks] : {std::pair{tiny("llama-tied"), 0},
                                     {tiny("llama-tied"), 26},
                                     {tiny("gemma3-local-global"), 0},
                                     {tiny("gemma3-local-global"), 220},
                                     {tiny("mistral-window"), 0}}) {
    Loaded model(path, false);
    EngineConfig config{.max_sequences = 8, .step_tokens = 48, .max_context = 320};
    config.prefix_cache = false;
    model.start(config);
    std::vector<Request> wishes;
    for (int i = 0; i < 24; ++i) {
      Request r = greedy({}, 0);
      for (int t = 0; t < 50 + 45 * (i % 3); ++t) r.prompt.push_back((i % 3 * 977 + t * 31) % model.spec.vocab);
      if (i % 5 == 1) r.sampling.temperature = 0.8f, r.sampling.seed = uint64_t(i);
      if (i % 6 == 2) r.sampling.repetition_penalty = 1.3f;
      r.sampling.prompt_top_logprobs = i == 5 ? 0 : -1;
      r.prompt.resize(r.prompt.size() - size_t(i % 7));
      for (int t = 0; t < i * 5 % 40; ++t) r.prompt.push_back(int32_t(i * 31 + t) % model.spec.vocab);
      r.cache_salt[0] = uint64_t(i % 4 == 3);
      r.max_tokens = 30 + i;
      if (i % 8 == 6) r.pooling = i == 14 ? Pooling::last : Pooling::mean;
      wishes.push_back(std::move(r));
    }
    std::vector<Outcome> off;
    for (const Request& r : wishes) {
      TestClient client(*model.engine, r);
      off.push_back(outcome(client));
      EXPECT_EQ(client.stream->times().cached_tokens, 0);
    }
    config.prefix_cache = true;
    config.kv_bytes = size_t(blocks) * (model.engine->info().kv_bytes / size_t(model.engine->info().blocks));
    model.start(config);
    int cached = 0, preemptions = 0;
    for (int round = 0; round < 2; ++round) {
      std::deque<TestClient> together;
      for (const Request& r : wishes) together.emplace_back(*model.engine, r);
      for (size_t i = 0; i < wishes.size(); ++i) {
        const Outcome got = outcome(together[i]);
        EXPECT_TRUE(got == off[i]) << path << " round " << round << " request " << i;
        cached += together[i].stream->times().cached_tokens;
        preemptions += got.preemptions;
        const bool wants_all = i == 5 || wishes[i].pooling == Pooling::mean;
        EXPECT_TRUE(!wants_all || together[i].stream->times().cached_tokens == 0)
            << "its prompt's logits or states are wanted";
      }
    }
    EXPECT_GT(cached, 500) << path;
    EXPECT_TRUE(preemptions > 0 || blocks != 26) << path;
    model.engine->drain(now_ns() + 60'000'000'000);
    EXPECT_EQ(model.engine->status().blocks_used, 0);
  }
}

TEST(Batching, AWarmStepOfTheModelAllocatesNothing) {
  Loaded model(tiny("llama-tied"), false);
  model.start({.max_sequences = 16, .step_tokens = 64, .max_context = 256, .logit_rows = 8});
  const std::vector<Request> wishes = mixed(model.spec.vocab, 100, 40);
  const auto burst = [&] {
    std::deque<TestClient> clients;
    for (const Request& r : wishes) clients.emplace_back(*model.engine, r);
    for (TestClient& c : clients) c.finish();
  };
  burst();
  const uint64_t before = engine_allocations();
  burst();
  EXPECT_EQ(engine_allocations(), before);
}

// Log-probabilities of all prompts' tokens, one after the other.
std::vector<float> prompt_logprobs(Loaded& model, const EngineConfig& config) {
  model.start(config);
  std::vector<float> out;
  std::deque<TestClient> clients;
  for (const Request& r : mixed(model.spec.vocab, 200, 40)) clients.emplace_back(*model.engine, r);
  for (TestClient& client : clients) {
    const Outcome got = outcome(client);
    EXPECT_EQ(client.reason, FinishReason::length);
    out.insert(out.end(), got.prompt_logprobs.begin(), got.prompt_logprobs.end());
  }
  model.engine->drain(now_ns() + 60'000'000'000);
  EXPECT_EQ(model.engine->status().blocks_used, 0);
  return out;
}

// What is read of small tiers is what was written, but for its rounding; on both backends.
TEST(KvPrecision, SmallTiersAnswerNearlyAsFullPrecision) {
  for (const bool reference : {true, false}) {
    Loaded model(tiny("gemma3-local-global"), reference);
    EngineConfig config{
        .max_sequences = 8, .step_tokens = 32, .block_tokens = 16, .max_context = 256, .logit_rows = 8};
    const std::vector<float> full = prompt_logprobs(model, config);
    ASSERT_GT(full.size(), 500u);
    config.kv.tier_full_tokens = 32;
    config.kv.tier_int8_tokens = 96;
    for (const auto& [precision, most] : {std::pair{"int8", 0.01}, {"int4", 0.2}, {"tiered", 0.1}}) {
      config.kv.precision = precision;
      const std::vector<float> got = prompt_logprobs(model, config);
      ASSERT_EQ(got.size(), full.size());
      double distance = 0;
      for (size_t i = 0; i < full.size(); ++i) distance += std::abs(double(got[i]) - full[i]);
      distance /= double(full.size());
      EXPECT_GT(distance, 0) << precision << ": nothing was converted";
      EXPECT_LT(distance, most) << precision;
    }
  }
}

// Recorded steps, padded and replayed on a device behind the host, answer as the same ops one by one do.
TEST(Batching, ReplayedAsComputedOpByOp) {
  for (const char* name : {"llama-tied", "gemma3-local-global"}) {
    EngineConfig config{.max_sequences = 16, .step_tokens = 64, .max_context = 256, .logit_rows = 8};
    Loaded plain(tiny(name), true);
    plain.start(config);
    auto device = std::make_unique<ReplayingBackend>();
    const ReplayingBackend& replaying = *device;
    Loaded replayed(tiny(name), std::move(device));
    replayed.start(config);
    EXPECT_EQ(replaying.recorded(), 2 * 5) << "buckets 1, 2, 4, 8, 16 in both slots, before the first request";
    EXPECT_EQ(replaying.replayed(), 0);

    const std::vector<Request> wishes = mixed(plain.spec.vocab, 40, 20);
    std::deque<TestClient> one, other;
    for (const Request& r : wishes) one.emplace_back(*plain.engine, r), other.emplace_back(*replayed.engine, r);
    for (size_t i = 0; i < wishes.size(); ++i)
      EXPECT_TRUE(outcome(one[i]) == outcome(other[i])) << name << " request " << i;
    // How many of those steps were of one row per sequence depends on when prompts came; alone, all but the
    // first are.
    const int before = replaying.replayed();
    TestClient lone(*replayed.engine, greedy({5, 6, 7}, 20));
    EXPECT_EQ(outcome(lone).ids.size(), 20u);
    EXPECT_GE(replaying.replayed() - before, 19);
    EXPECT_EQ(replaying.recorded(), 2 * 5);
    EXPECT_LE(replaying.most_under_way(), 2);

    config.graphs = false;
    replayed.start(config);
    TestClient without(*replayed.engine, wishes[0]);
    EXPECT_TRUE(outcome(without) == outcome(one[0])) << name << ", without records";
  }
}

}  // namespace
}  // namespace sluice
