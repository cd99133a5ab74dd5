// Whole models through quantize_model: tiny checkpoints of several families.
#include "quantize/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "model/formats/safetensors.h"
#include "model/test_run.h"
#include "quantize/card_like_backend.h"
#include "quantize/folder_config.h"
#include "quantize/matrix_rows.h"

namespace sluice::quantize {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kTiny = SLUICE_SOURCE_DIR "/../shared/cases/tiny/";

class Quantize : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_); }

  Calibration random_samples(int vocab) {
    Calibration c{.seed = seed_};
    std::mt19937 random(5);
    for (int i = 0; i < 8; i++) {
      c.samples.emplace_back();
      for (int t = 0; t < 24 + i; t++) c.samples.back().push_back(int32_t(random() % unsigned(vocab)));
    }
    c.passages = {1, 2, 3};
    return c;
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  // A tiny model whose tensor begins with other bytes.
  static void damage(const std::string& folder, const char* tensor, const char (&bytes)[5]) {
    fs::create_directories(folder);
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(kTiny + "qwen3-qknorm/" + name, folder + "/" + name, fs::copy_options::overwrite_existing);
      fs::permissions(folder + "/" + name, fs::perms::owner_all);
    }
    auto opened = SafetensorsFolder::open(folder);
    const SafetensorsTensor* t = (*opened)->tensor(tensor);
    ASSERT_NE(t, nullptr) << tensor;
    const std::string file = folder + "/model.safetensors";
    std::ifstream in(file, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(in), {}};
    const std::string begin(reinterpret_cast<const char*>(t->data.data()),
                            std::min<size_t>(64, t->data.size()));
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(int64_t(all.find(begin)));
    out.write(bytes, 4);
  }

  Status quantize(const std::string& model, const Settings& settings, const std::string& out,
                  std::function<void(double)> progress = {}) {
    auto checkpoint = open_checkpoint(model);
    CHECK(checkpoint.ok());
    auto plan = make_plan(**checkpoint, settings);
    if (!plan) return plan.error();
    const Calibration samples = random_samples((*checkpoint)->spec().vocab);
    const std::unique_ptr<Backend> host = make_ref_backend();
    return quantize_model({.checkpoint = **checkpoint,
                           .plan = *plan,
                           .calibration = plan->calibrated() ? &samples : nullptr,
                           .out = path(out),
                           .make_backend = make_backend_,
                           .host = *host,
                           .threads = 2,
                           .progress = std::move(progress)});
  }

  // |difference| / |logits| over a few positions.
  static double distance(const std::string& a, const std::string& b) {
    TestRun one(a, make_ref_backend()), two(b, make_ref_backend());
    const std::vector<TestRun::Chunk> chunk = {{0, {5, 99, 7, 200, 31, 12, 64, 3}, 8}};
    const auto x = one.step(chunk), y = two.step(chunk);
    double difference = 0, size = 0;
    for (size_t r = 0; r < x.size(); r++)
      for (size_t i = 0; i < x[r].size(); i++) {
        difference += std::pow(double(x[r][i] - y[r][i]), 2);
        size += std::pow(double(x[r][i]), 2);
      }
    return std::sqrt(difference / size);
  }
  std::map<std::string, std::string> files(const std::string& folder) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::directory_iterator(dir_ / folder)) {
      std::ifstream in(entry.path(), std::ios::binary);
      out[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return out;
  }

  uint64_t seed_ = 1;  // as the calibration says
  BackendMaker make_backend_ = [] { return make_ref_backend(); };
  const fs::path dir_ = fs::temp_directory_path() / ("sluice_quantize_" + std::to_string(getpid()));
};

// With eight bits little is lost, so whatever a factor was moved wrongly to would stand out.
class Families : public Quantize, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Tiny, Families,
                         testing::Values("llama-untied-llama3rope", "llama-tied", "mistral-window",
                                         "qwen2-bias-tied", "qwen3-qknorm", "gemma3-local-global",
                                         "gemma2-softcap", "phi3-fused"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(Families, EightBitsOfEveryMethodComputeWhatTheModelComputes) {
  struct Case {
    Method method;
    const char* layout;
    double most;
  };
  int number = 0;
  for (const Case& c : {Case{Method::rtn, "gptq", 0.04}, Case{Method::awq, "compressed-tensors", 0.04},
                        Case{Method::gptq, "gptq", 0.04}, Case{Method::int8, "compressed-tensors", 0.04},
                        Case{Method::fp8, "compressed-tensors", 0.2}}) {
    const std::string out = "out" + std::to_string(number++);
    const Status done = quantize(kTiny + GetParam(), {.method = c.method, .layout = c.layout, .bits = 8}, out);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_LT(distance(kTiny + GetParam(), path(out)), c.most) << method_name(c.method);
    EXPECT_FALSE(fs::exists(path(out) + ".partial"));
  }
}

// The way over a card, whose activations are bf16: what comes of it is as near to the model as what a CPU
// makes.
TEST_F(Quantize, ACardComputesLayersAndSecondMoments) {
  for (const char* family : {"qwen2-bias-tied", "gemma3-local-global"})
    for (const Method method : {Method::awq, Method::gptq, Method::int8, Method::fp8}) {
      const Settings settings{.method = method, .group = 32, .compensated = method == Method::fp8};
      const std::string name = std::string(family) + method_name(method);
      make_backend_ = [] { return make_ref_backend(); };
      ASSERT_TRUE(quantize(kTiny + family, settings, name + "cpu").ok());
      int made = 0;
      make_backend_ = [&made]() -> Result<std::unique_ptr<Backend>> {
        ++made;
        return std::unique_ptr<Backend>(std::make_unique<CardLikeBackend>());
      };
      const Status done = quantize(kTiny + family, settings, name + "card");
      ASSERT_TRUE(done.ok()) << done.error().message;
      EXPECT_GT(made, 2) << "a layer has its own, and the moments";
      const double cpu = distance(kTiny + family, path(name + "cpu")),
                   card = distance(kTiny + family, path(name + "card"));
      EXPECT_LT(card, 1.6 * cpu) << name;
      EXPECT_GT(distance(path(name + "cpu"), path(name + "card")), 0) << "bf16 rounds: " << name;
    }
}

TEST_F(Quantize, ARunOnACardIsNotGoneOnWithOnACpu) {
  const Settings settings{.method = Method::int8};
  struct Killed {};
  make_backend_ = []() -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<CardLikeBackend>());
  };
  EXPECT_THROW((void)quantize(kTiny + "qwen3-qknorm", settings, "out",
                              [](double done) {
                                if (done >= 0.5) throw Killed();
                              }),
               Killed);
  make_backend_ = [] { return make_ref_backend(); };
  const Status other = quantize(kTiny + "qwen3-qknorm", settings, "out");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("'computed by: like a card' there"));
}

TEST_F(Quantize, ExpertsAreRoundedAndAreNotCalibrated) {
  for (const char* model : {"mixtral-moe", "qwen3moe"}) {
    ASSERT_TRUE(quantize(kTiny + model, {.method = Method::fp8}, model).ok());
    EXPECT_LT(distance(kTiny + model, path(model)), 0.15) << model;
    EXPECT_THAT(quantize(kTiny + model, {.method = Method::awq}, "x").error().message,
                HasSubstr("rtn and fp8 only"));
  }
}

TEST_F(Quantize, TargetsOfTheFeedForwardLeaveAttentionAlone) {
  ASSERT_TRUE(quantize(kTiny + "qwen3-qknorm", {.method = Method::rtn, .all_targets = false}, "mlp").ok());
  const auto made = open_checkpoint(path("mlp"));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ((*made)->rows("blk.0.ffn_up.weight")->format().element, WeightElement::int4);
  EXPECT_TRUE((*made)->rows("blk.0.attn_q.weight")->format().is_float());
  EXPECT_THAT(files("mlp")["config.json"], HasSubstr("\"model.layers.0.self_attn.q_proj\""));
}

TEST_F(Quantize, AGroupIsHalvedUntilItDividesAndWhatNoneDividesStays) {
  // Width 72, feed-forward of 192: only the latter has groups, of 64.
  const auto checkpoint = open_checkpoint(kTiny + "llama-tied");
  const auto plan = make_plan(**checkpoint, {.method = Method::rtn});
  EXPECT_EQ(plan->grid.group, 64);
  EXPECT_TRUE(plan->kept.contains("attn_q.weight"));
  EXPECT_FALSE(plan->kept.contains("ffn_down.weight"));
  ASSERT_TRUE(quantize(kTiny + "llama-tied", {.method = Method::awq}, "odd").ok());
  EXPECT_TRUE((*open_checkpoint(path("odd")))->rows("blk.1.attn_q.weight")->format().is_float());
}

TEST_F(Quantize, AnInterruptedRunGoesOnToTheSameBytes) {
  for (const Method method : {Method::rtn, Method::awq, Method::gptq}) {
    const std::string model = kTiny + "gemma3-local-global", name = method_name(method);
    ASSERT_TRUE(quantize(model, {.method = method}, "whole-" + name).ok());
    // Killed in the third of four layers.
    const pid_t child = fork();
    if (child == 0) {
      (void)quantize(model, {.method = method}, "cut-" + name, [](double done) {
        if (done > 0.6) _exit(9);
      });
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_EQ(WEXITSTATUS(status), 9);
    EXPECT_FALSE(fs::exists(path("cut-" + name)));
    EXPECT_TRUE(fs::exists(path("cut-" + name) + ".partial"));
    // Of other settings, it is not gone on with.
    const Status other = quantize(model, {.method = method, .group = 64, .all_targets = false}, "cut-" + name);
    EXPECT_THAT(other.error().message, HasSubstr("of another model or of other settings"));
    EXPECT_THAT(other.error().message, HasSubstr("('targets: \"all\"' there, 'targets: \"mlp\"' here)"));
    double begins = 1;
    ASSERT_TRUE(quantize(model, {.method = method}, "cut-" + name, [&](double d) {
                  begins = std::min(begins, d);
                }).ok());
    EXPECT_EQ(files("cut-" + name), files("whole-" + name));
  }
}

// Whatever the result depends on, by name; not how the model's path is written.
TEST_F(Quantize, ARunIsNotMixedWithAnother) {
  const std::string model = path("model");
  fs::create_directories(model);
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(kTiny + "qwen3-qknorm/" + name, model + "/" + name);
  const Settings settings{.method = Method::fp8, .compensated = true};
  const pid_t child = fork();
  if (child == 0) {
    (void)quantize(model, settings, "mixed", [](double) { _exit(9); });
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 9);
  Settings other = settings;
  other.damping = 0.5;
  EXPECT_THAT(quantize(model, other, "mixed").error().message,
              HasSubstr("('damping: 0.1' there, 'damping: 0.5' here)"));
  seed_ = 2;
  EXPECT_THAT(quantize(model, settings, "mixed").error().message,
              HasSubstr("('calibration seed: 1' there, 'calibration seed: 2' here)"));
  seed_ = 1;
  const fs::file_time_type written = fs::last_write_time(model + "/model.safetensors");
  fs::last_write_time(model + "/model.safetensors", written + std::chrono::seconds(5));
  EXPECT_THAT(quantize(model, settings, "mixed").error().message, HasSubstr("('file model.safetensors: "));
  fs::last_write_time(model + "/model.safetensors", written);
  const Status done = quantize(path("") + "/../" + dir_.filename().string() + "/model/", settings, "mixed");
  EXPECT_TRUE(done.ok()) << done.error().message;
}

TEST_F(Quantize, OneRunWritesAFolder) {
  std::string said;
  ASSERT_TRUE(quantize(kTiny + "qwen3-qknorm", {.method = Method::rtn}, "one", [&](double) {
                const Status second = quantize(kTiny + "qwen3-qknorm", {.method = Method::rtn}, "one");
                said = second ? "both write" : second.error().message;
              }).ok());
  EXPECT_THAT(said, HasSubstr("one.partial: another run is writing it"));
}

TEST_F(Quantize, WhatIsThereIsNotWrittenOver) {
  fs::create_directories(path("there"));
  const Status done = quantize(kTiny + "qwen3-qknorm", {.method = Method::rtn}, "there");
  EXPECT_THAT(done.error().message, HasSubstr("exists already"));
  EXPECT_EQ(done.error().field, "output");
}

// Whatever the tensor is to become, and whether or not the method reads it.
TEST_F(Quantize, AWeightThatIsNoNumberIsNamed) {
  struct Case {
    const char *tensor, *says;
    Settings settings;
  };
  const Case cases[] = {
      {"model.layers.1.mlp.up_proj.weight", "tensor 'blk.1.ffn_up.weight' holds nan in row 0", {Method::rtn}},
      {"model.layers.1.self_attn.v_proj.weight",
       "tensor 'blk.1.attn_v.weight' holds nan in row 0",
       {Method::rtn}},
      {"model.embed_tokens.weight", "tensor 'token_embd.weight' holds nan in row 0", {Method::rtn}},
      {"model.norm.weight", "tensor 'output_norm.weight' holds nan in row 0", {Method::rtn}},
      {"model.layers.0.input_layernorm.weight", "layer 0 computes NaN or infinite numbers", {Method::gptq}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.tensor);
    const std::string model = path("model");
    damage(model, c.tensor, "\xff\x7f\xff\x7f");  // NaN in bf16, f16 and f32
    const Status done = quantize(model, c.settings, "nan");
    ASSERT_FALSE(done.ok());
    EXPECT_THAT(done.error().message, HasSubstr(c.says));
    EXPECT_FALSE(fs::exists(path("nan")));
    fs::remove_all(path("nan.partial"));
  }
}

// A scale of 4 bits is f16: it would be infinite, and the model's answers no numbers.
TEST_F(Quantize, WeightsTooLargeForTheirScaleAreNamed) {
  damage(path("model"), "model.layers.1.mlp.up_proj.weight", "\x80\x4a\x80\x4a");  // 4194304 in bf16
  for (const Method method : {Method::rtn, Method::gptq}) {
    const Status done = quantize(path("model"), {.method = method}, "large");
    ASSERT_FALSE(done.ok());
    EXPECT_THAT(done.error().message,
                HasSubstr("tensor 'blk.1.ffn_up.weight' has values too large for 4 bits"));
    fs::remove_all(path("large.partial"));
  }
}

TEST_F(Quantize, AQuantizedModelIsNotQuantizedAgain) {
  ASSERT_TRUE(quantize(kTiny + "qwen3-qknorm", {.method = Method::rtn}, "once").ok());
  EXPECT_THAT(quantize(path("once"), {.method = Method::rtn}, "twice").error().message,
              HasSubstr("quantized already"));
  EXPECT_FALSE(fs::exists(path("twice.partial"))) << "it was known before anything was computed";
}

// A GGUF file's: divisors of the frequencies in place of the numbers that they come from.
class WithDivisors final : public Checkpoint {
 public:
  WithDivisors(const Checkpoint& model, float factor) : model_(model), spec_(model.spec()), divisors_(1, 0) {
    spec_.rope.scaling = RopeSpec::Scaling::none;
    RopeSpec scaled = spec_.rope;
    scaled.scaling = RopeSpec::Scaling::llama3;
    scaled.factor = factor, scaled.low_freq_factor = 1, scaled.high_freq_factor = 4,
    scaled.original_context = 8192;
    const auto plain = spec_.rope.inverse_frequencies(spec_.head_dim),
               by = scaled.inverse_frequencies(spec_.head_dim);
    divisors_ = Matrix(1, int64_t(plain.size()));
    for (size_t i = 0; i < plain.size(); i++) divisors_.values[i] = plain[i] / by[i];
  }
  const std::string& path() const override { return model_.path(); }
  std::string format() const override { return model_.format(); }
  const ModelSpec& spec() const override { return spec_; }
  std::vector<TensorInfo> tensors() const override { return {}; }
  std::unique_ptr<RowSource> rows(std::string_view slot) const override {
    return slot == "rope_freqs.weight" ? std::make_unique<MatrixRows>(divisors_) : model_.rows(slot);
  }
  std::vector<int32_t> row_order(std::string_view slot) const override { return model_.row_order(slot); }
  Result<std::string> side_file(std::string_view name) const override { return model_.side_file(name); }
  const GgufFile* gguf() const override { return nullptr; }
  void release(std::string_view) const override {}

 private:
  const Checkpoint& model_;
  ModelSpec spec_;
  Matrix divisors_;
};

TEST_F(Quantize, TheScalingOfRotationGetsItsName) {
  auto model = open_checkpoint(kTiny + "llama-untied-llama3rope");
  ASSERT_TRUE(model.ok());
  for (const float factor : {8.0f, 32.0f}) {
    const Result<ModelSpec> spec = spec_of_config(WithDivisors(**model, factor));
    ASSERT_TRUE(spec.ok());
    EXPECT_EQ(spec->rope.factor, factor);
    const Result<std::string> config = config_from_numbers(*spec, "model", "\"a\": 1");
    ASSERT_TRUE(config.ok());
    EXPECT_THAT(*config, HasSubstr("\"rope_type\": \"llama3\", \"factor\": " + std::to_string(int(factor))));
  }
  EXPECT_THAT(spec_of_config(WithDivisors(**model, 3)).error().message, HasSubstr("rope_freqs.weight"));
}

TEST_F(Quantize, TheModelSaysWhatItWasCalibratedOn) {
  ASSERT_TRUE(quantize(kTiny + "qwen3-qknorm", {.method = Method::int8}, "said").ok());
  EXPECT_THAT(calibration_passages(**open_checkpoint(path("said"))), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(files("said")["config.json"], HasSubstr("\"observer\": \"minmax\""));
}

}  // namespace
}  // namespace sluice::quantize
