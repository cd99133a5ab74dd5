#include "tune/plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::tune {
namespace {

constexpr int kStartContext = 32768;
constexpr const char* kWindowKeys[] = {"scheduler.window.max_batch_size", "scheduler.window.batch_timeout_ms",
                                       "scheduler.window.min_trigger_interval_ms",
                                       "scheduler.window.window_ms"};

Step batching(const PlanWish& wish) {
  const int batch = std::clamp(wish.concurrency > 0 ? wish.concurrency : 128, 1, 4096);
  return {"batching",
          "Dynamic batching",
          {"batch-policy-mismatch"},
          {{"windows of arrivals",
            {{"scheduler.policy", "windowed"},
             {"scheduler.window.max_batch_size", fmt::format("{}", batch)},
             {"scheduler.window.batch_timeout_ms", "20"},
             {"scheduler.window.min_trigger_interval_ms", "5"},
             {"engine.max_sequences", fmt::format("{}", batch)}},
            {},
            ""}},
          ""};
}

Step kv() {
  return {"kv",
          "KV cache: blocks when a token needs them, prefix cache",
          {"kv-preallocation-waste", "kv-fragmentation", "kv-pool-too-small"},
          {{"paged, prefix cache", {{"kv.allocation", "paged"}, {"kv.prefix_cache", "true"}}, {}, ""}},
          ""};
}

Step weights(const PlanWish& wish, const std::string& model, const Place& place) {
  Step step{"weights", "Weights of fewer bits", {"memory-bandwidth-bound"}, {}, ""};
  if (wish.exact) {
    step.nothing = "--exact: answers are to stay as they are";
  } else if (place.weight_bits <= 4) {
    step.nothing = "the model's weights have 4 bits already";
  } else if (place.dummy) {
    const std::string shape = model.substr(0, model.find(':', model.find(':') + 1));
    step.variants.push_back({"4 bits (awq)", {}, {}, shape + ":awq"});
    // Where many sequences share a step, arithmetic bounds it and not memory: eight bits halve both.
    if (place.card) step.variants.push_back({"8 bits (fp8)", {}, {}, shape + ":fp8"});
  } else if (!place.quantized_model.empty()) {
    step.variants.push_back({"4 bits (awq)", {}, {}, place.quantized_model});
  } else {
    step.nothing = place.quantized_refusal;
  }
  return step;
}

Step kernels(const Place& place) {
  Step step{"kernels", "Kernel fusion and recorded steps", {"host-bound", "graph-misses"}, {}, ""};
  Variant fused{"fused", {{"engine.fusion", "true"}}, {}, ""};
  if (place.card) {  // a CPU has no recorded steps to replay
    fused.name = "fused, recorded";
    fused.set.push_back({"engine.graphs", "true"});
    fused.set.push_back({"gpu.fused_quantization", "true"});
  }
  step.variants.push_back(fused);
  return step;
}

Step scheduler(const PlanWish& wish, const Place& place) {
  Step step{"scheduler",
            "Continuous batching, chunk budget, precision of the KV cache",
            {"batch-policy-mismatch", "long-prompt-interference", "queue-saturation"},
            {},
            ""};
  Variant continuous{"continuous", {{"scheduler.policy", "continuous"}}, {}, ""};
  for (const char* key : kWindowKeys) continuous.clear.emplace_back(key);
  step.variants.push_back(continuous);
  // Prompts in larger chunks: throughput for steadiness between tokens.
  const char* target_ms = place.card ? "100" : "1000";
  continuous.name = fmt::format("continuous, steps of up to {} ms", target_ms);
  continuous.set.push_back({"scheduler.target_itl_ms", target_ms});
  step.variants.push_back(continuous);
  if (!wish.exact) {
    continuous.name += ", int8 KV in blocks";  // whole contexts are kept in one precision
    continuous.set.push_back({"kv.allocation", "paged"});
    continuous.set.push_back({"kv.precision", "int8"});
    step.variants.push_back(continuous);
  }
  return step;
}

Step system(const Place& place) {
  Step step{
      "system", "I/O and threads", {"door-bound", "cpu-scheduling-delay", "oversubscribed-cores"}, {}, ""};
  Variant pooled{"pooled I/O", {{"io.pooled", "true"}}, {}, ""};
  step.variants.push_back(pooled);
  if (place.cores < 4) return step;  // none that would be idle
  pooled.name += ", network and text threads";
  pooled.set.push_back({"server.network_threads", place.cores >= 8 ? "4" : "2"});
  pooled.set.push_back({"server.text_threads", "2"});
  step.variants.push_back(pooled);
  return step;
}

}  // namespace

Configuration collapsed_start(const std::string& model, const Place& place) {
  Configuration c{model, {}};
  c.set("scheduler.policy", "serial");
  c.set("kv.allocation", "contiguous_max_context");
  c.set("kv.prefix_cache", "false");
  c.set("io.pooled", "false");
  c.set("engine.max_context", fmt::format("{}", std::min(place.context, kStartContext)));
  c.set("engine.fusion", "false");
  if (place.card) {
    c.set("engine.graphs", "false");
    c.set("gpu.fused_quantization", "false");
  }
  return c;
}

Result<std::vector<std::string>> parse_order(const std::string& text) {
  std::vector<std::string> order;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, comma - at);
    if (std::find(std::begin(kStepNames), std::end(kStepNames), name) == std::end(kStepNames))
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--order: no step named '{}'; there are {}", name, fmt::join(kStepNames, ", "))};
    if (std::find(order.begin(), order.end(), name) != order.end())
      return Error{ErrorCode::kInvalidArgument, fmt::format("--order: '{}' twice", name)};
    order.push_back(name);
    at = comma + 1;
  }
  for (const std::string_view name : kStepNames)
    if (std::find(order.begin(), order.end(), name) == order.end()) order.emplace_back(name);
  return order;
}

std::vector<Step> plan_steps(const PlanWish& wish, const std::string& model, const Place& place) {
  const std::vector<Step> known = {
      batching(wish), kv(), weights(wish, model, place), kernels(place), scheduler(wish, place), system(place)};
  std::vector<Step> steps;
  for (const std::string& name : wish.order) {
    const auto step = std::find_if(known.begin(), known.end(), [&](const Step& s) { return s.name == name; });
    CHECK(step != known.end());
    steps.push_back(*step);
  }
  return steps;
}

Configuration with(Configuration configuration, const Variant& variant) {
  for (const std::string& key : variant.clear) configuration.clear(key);
  for (const Setting& s : variant.set) configuration.set(s.key, s.value);
  if (!variant.model.empty()) configuration.model = variant.model;
  return configuration;
}

}  // namespace sluice::tune
