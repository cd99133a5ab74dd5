// The way from the collapsed start to full speed: what each step changes, and which finding of the doctor it
// removes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tune/configuration.h"

namespace sluice::tune {

// What is known of the machine and the model before anything is measured.
struct Place {
  bool card = false;
  int cores = 1;
  int context = 0;     // of the model
  bool dummy = false;  // made-up weights
  int weight_bits = 16;
  std::string quantized_model{};    // a model with 4-bit weights that takes the place of this one; empty: none
  std::string quantized_refusal{};  // why there is none
};

// One way to take a step. Several: each is measured on what was kept before, and the best one counts.
struct Variant {
  std::string name;
  std::vector<Setting> set;
  std::vector<std::string> clear;  // keys that go back to their defaults
  std::string model;               // empty: as it was
};

struct Step {
  std::string name;                  // as in --order
  std::string title;                 // for people
  std::vector<std::string> removes;  // causes, as the doctor names them
  std::vector<Variant> variants;
  std::string nothing;  // why there is nothing to measure, where there are no variants
};

inline constexpr std::string_view kStartName = "start", kSearchName = "search";
// The steps in their usual order, without the start and the search.
inline constexpr std::string_view kStepNames[] = {"batching", "kv",        "weights",
                                                  "kernels",  "scheduler", "system"};

// Serial batches, whole contexts reserved (of 32K or what the model has), no prefix cache, a write for each
// token, no recorded steps, nothing fused: each the plain way of doing it. `exact` changes nothing here.
Configuration collapsed_start(const std::string& model, const Place& place);

struct PlanWish {
  bool exact =
      false;  // only what leaves the answers as they are: no smaller weights, no smaller keys and values
  int concurrency = 0;
  std::vector<std::string> order{};  // of all of kStepNames
};
std::vector<Step> plan_steps(const PlanWish& wish, const std::string& model, const Place& place);

// "kv,batching": what is not named follows in the usual order. Errors: an unknown name, one twice.
Result<std::vector<std::string>> parse_order(const std::string& text);

Configuration with(Configuration configuration, const Variant& variant);

}  // namespace sluice::tune
