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

namespace sluice::quantize {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kTiny = SLUICE_SOURCE_DIR "/../shared/cases/tiny/";

class Quantize : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_); }

  static Calibration random_samples(int vocab) {
    Calibration c;
    std::mt19937 random(5);
    for (int i = 0; i < 8; i++) {
      c.samples.emplace_back();
      for (int t = 0; t < 24 + i; t++) c.samples.back().push_back(int32_t(random() % unsigned(vocab)));
    }
    c.passages = {1, 2, 3};
    return c;
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  Status quantize(const std::string& model, const Settings& settings, const std::string& out,
                  std::function<void(double)> progress = {}) {
    auto checkpoint = open_checkpoint(model);
    CHECK(checkpoint.ok());
    auto plan = make_plan(**checkpoint, settings);
    if (!plan) return plan.error();
    const Calibration samples = random_samples((*checkpoint)->spec().vocab);
    const std::unique_ptr<Backend> backend = make_ref_backend();
    return quantize_model({.checkpoint = **checkpoint,
                           .plan = *plan,
                           .calibration = plan->calibrated() ? &samples : nullptr,
                           .out = path(out),
                           .threads = 2,
                           .progress = std::move(progress)},
                          *backend);
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
    double begins = 1;
    ASSERT_TRUE(quantize(model, {.method = method}, "cut-" + name, [&](double d) {
                  begins = std::min(begins, d);
                }).ok());
    EXPECT_EQ(files("cut-" + name), files("whole-" + name));
  }
}

TEST_F(Quantize, WhatIsThereIsNotWrittenOver) {
  fs::create_directories(path("there"));
  const Status done = quantize(kTiny + "qwen3-qknorm", {.method = Method::rtn}, "there");
  EXPECT_THAT(done.error().message, HasSubstr("exists already"));
  EXPECT_EQ(done.error().field, "output");
}

TEST_F(Quantize, AWeightThatIsNoNumberIsNamed) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(kTiny + "qwen3-qknorm/" + name, dir_ / name);
    fs::permissions(dir_ / name, fs::perms::owner_all);
  }
  {
    auto opened = SafetensorsFolder::open(dir_.string());
    const SafetensorsTensor* t = (*opened)->tensor("model.layers.1.mlp.up_proj.weight");
    std::fstream file(dir_ / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    std::ifstream in(dir_ / "model.safetensors", std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(in), {}};
    const std::string bytes(reinterpret_cast<const char*>(t->data.data()), 64);
    file.seekp(int64_t(all.find(bytes)));
    file.write("\xff\x7f\xff\x7f", 4);  // NaN in bf16, f16 and f32
  }
  const Status done = quantize(dir_.string(), {.method = Method::rtn}, "nan");
  ASSERT_FALSE(done.ok());
  EXPECT_THAT(done.error().message, HasSubstr("tensor 'blk.1.ffn_up.weight' holds nan in row 0"));
  EXPECT_FALSE(fs::exists(path("nan")));
}

TEST_F(Quantize, AQuantizedModelIsNotQuantizedAgain) {
  ASSERT_TRUE(quantize(kTiny + "qwen3-qknorm", {.method = Method::rtn}, "once").ok());
  EXPECT_THAT(quantize(path("once"), {.method = Method::rtn}, "twice").error().message,
              HasSubstr("quantized already"));
}

TEST_F(Quantize, TheModelSaysWhatItWasCalibratedOn) {
  ASSERT_TRUE(quantize(kTiny + "qwen3-qknorm", {.method = Method::int8}, "said").ok());
  EXPECT_THAT(calibration_passages(**open_checkpoint(path("said"))), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(files("said")["config.json"], HasSubstr("\"observer\": \"minmax\""));
}

}  // namespace
}  // namespace sluice::quantize
