#include "tune/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::tune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kModel = "dummy:llama-3.1-8b:bf16";
const Place kCard{.card = true, .cores = 16, .context = 131072, .dummy = true, .weight_bits = 16};
const Place kTwoCores{.card = false, .cores = 2, .context = 8192, .dummy = false, .weight_bits = 4};

std::vector<Step> plan(const PlanWish& wish, const Place& place) {
  PlanWish whole = wish;
  if (whole.order.empty()) whole.order = *parse_order("");
  return plan_steps(whole, kModel, place);
}
const Step& step(const std::vector<Step>& steps, std::string_view name) {
  for (const Step& s : steps)
    if (s.name == name) return s;
  throw std::out_of_range(std::string(name));
}

TEST(Plan, StartsWithThePlainWayOfDoingEverything) {
  const Configuration start = collapsed_start(kModel, kCard);
  EXPECT_EQ(start.get("scheduler.policy"), "serial");
  EXPECT_EQ(start.get("kv.allocation"), "contiguous_max_context");
  EXPECT_EQ(start.get("kv.prefix_cache"), "false");
  EXPECT_EQ(start.get("io.pooled"), "false");
  EXPECT_EQ(start.get("engine.max_context"), "32768");
  EXPECT_EQ(start.get("engine.graphs"), "false");
  EXPECT_EQ(collapsed_start("m.gguf", kTwoCores).get("engine.max_context"), "8192");
  EXPECT_EQ(collapsed_start("m.gguf", kTwoCores).get("engine.graphs"), "");  // a CPU has none
}

TEST(Plan, StepsComeInTheOrderThatWasAskedFor) {
  EXPECT_THAT(*parse_order(""), ElementsAre("batching", "kv", "weights", "kernels", "scheduler", "system"));
  EXPECT_THAT(*parse_order("scheduler,kv"),
              ElementsAre("scheduler", "kv", "batching", "weights", "kernels", "system"));
  EXPECT_THAT(parse_order("kv,speed").error().message, HasSubstr("no step named 'speed'"));
  EXPECT_THAT(parse_order("kv,kv").error().message, HasSubstr("twice"));
  const auto steps = plan({.concurrency = 128, .order = *parse_order("system,kv")}, kCard);
  EXPECT_EQ(steps[0].name, "system");
  EXPECT_EQ(steps[1].name, "kv");
  EXPECT_EQ(steps.size(), 6u);
}

TEST(Plan, ExactLeavesAnswersAsTheyAre) {
  const auto steps = plan({.exact = true, .concurrency = 128}, kCard);
  EXPECT_TRUE(step(steps, "weights").variants.empty());
  EXPECT_THAT(step(steps, "weights").nothing, HasSubstr("--exact"));
  for (const Step& s : steps)
    for (const Variant& v : s.variants)
      for (const Setting& set : v.set) EXPECT_NE(set.key, "kv.precision") << v.name;
}

TEST(Plan, WhatAMachineOrAModelHasNothingForSaysWhy) {
  const auto steps = plan({.concurrency = 8}, kTwoCores);
  EXPECT_TRUE(step(steps, "weights").variants.empty());
  EXPECT_FALSE(step(steps, "weights").nothing.empty());
  EXPECT_FALSE(step(steps, "kv").variants.empty());
}

TEST(Plan, FusionIsMeasuredEverywhereAndRecordedStepsOnACard) {
  for (const Place& place : {kTwoCores, kCard}) {
    const Configuration start = collapsed_start(kModel, place);
    const Configuration c = with(start, step(plan({.concurrency = 8}, place), "kernels").variants[0]);
    EXPECT_EQ(start.get("engine.fusion"), "false");
    EXPECT_EQ(c.get("engine.fusion"), "true");
    EXPECT_EQ(c.get("engine.graphs"), place.card ? "true" : "");
  }
}

TEST(Plan, TheSystemStepTurnsPooledIoOnAndAddsThreadsWhereThereAreCores) {
  const auto variants = [](const Place& place) {
    return step(plan({.concurrency = 8}, place), "system").variants;
  };
  ASSERT_EQ(variants(kTwoCores).size(), 1u);
  ASSERT_EQ(variants(kCard).size(), 2u);
  for (const Variant& variant : variants(kCard))
    EXPECT_EQ(with(collapsed_start(kModel, kCard), variant).get("io.pooled"), "true") << variant.name;
  EXPECT_EQ(with(collapsed_start(kModel, kCard), variants(kCard)[1]).get("server.network_threads"), "4");
}

TEST(Plan, EachStepNamesTheCauseThatItRemoves) {
  for (const Step& s : plan({.concurrency = 8}, kCard)) EXPECT_FALSE(s.removes.empty()) << s.name;
}

TEST(Plan, MadeUpWeightsAreMadeInFourBits) {
  const auto steps = plan({.concurrency = 8}, kCard);
  const Configuration c = with({kModel, {}}, step(steps, "weights").variants[0]);
  EXPECT_EQ(c.model, "dummy:llama-3.1-8b:awq");
}

TEST(Plan, ContinuousBatchingForgetsTheWindow) {
  const auto steps = plan({.concurrency = 8}, kCard);
  Configuration c = with(collapsed_start(kModel, kCard), step(steps, "batching").variants[0]);
  EXPECT_EQ(c.get("scheduler.window.max_batch_size"), "8");
  c = with(c, step(steps, "scheduler").variants[0]);
  EXPECT_EQ(c.get("scheduler.policy"), "continuous");
  EXPECT_EQ(c.get("scheduler.window.max_batch_size"), "");
}

TEST(Plan, SmallerKeysAndValuesComeInBlocksSinceWholeContextsKeepOnePrecision) {
  const Configuration start = collapsed_start(kModel, kCard);
  const auto steps = plan({.concurrency = 8}, kCard);
  for (const Variant& variant : step(steps, "scheduler").variants) {
    const Configuration c = with(start, variant);
    const bool smaller = c.get("kv.precision") == "int8";
    EXPECT_EQ(c.get("kv.allocation"), smaller ? "paged" : "contiguous_max_context") << variant.name;
  }
}

TEST(Configuration, IsWordsForAShell) {
  Configuration c{"my model.gguf", {}};
  c.set("kv.allocation", "paged");
  c.set("engine.graphs", "true");
  c.set("kv.allocation", "it's");
  EXPECT_EQ(shell_line(serve_words(c)),
            R"('my model.gguf' --set engine.graphs=true --set 'kv.allocation=it'\''s')");
  EXPECT_EQ(shell_line(serve_words({kModel, {}})), "--dummy llama-3.1-8b:bf16");
}

}  // namespace
}  // namespace sluice::tune
