// What is to be done to a model: which matrices become integers, on which grid, and how the result is laid out.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "quantize/grid.h"
#include "quantize/layer_runner.h"
#include "quantize/statistics.h"

namespace sluice::quantize {

enum class Method : uint8_t { rtn, awq, gptq, int8, fp8 };
enum class Layout : uint8_t { awq, gptq, compressed, fp8, gguf };

const char* method_name(Method method);
const char* layout_name(Layout layout);

// As the command line has it.
struct Settings {
  Method method = Method::awq;
  std::string layout{};      // awq, gptq, compressed-tensors, fp8, gguf; empty: what the method is published in
  int bits = 0;              // 0: what the method is for, 4 or 8
  int group = 128;           // columns per step at most
  int block = 0;             // fp8: 128 for 128 x 128 blocks; 0: a scale per output
  bool all_targets = true;   // false: feed-forward only
  bool clip = true;          // awq
  double smoothing = 0.5;    // int8: the share of the activations' spread that weights take over
  double damping = 0.1;      // gptq, fp8: of the hessian's mean diagonal (README.md says why not 0.01)
  bool compensated = false;  // fp8: calibrated too, errors made good as gptq does
  Observer observer{};
};

// Products that read the same input, and what could take factors of that input's channels.
struct LinearGroup {
  Input input;
  std::vector<std::string> slots;  // without "blk.N."
  std::string norm;                // writes the input; empty: none does
  std::string feeder;  // the linear layer whose outputs are the input's channels, times others; or empty
};

struct Plan {
  Settings settings;  // nothing left open
  Layout layout = Layout::awq;
  Grid grid;  // of integer methods; group 0: the whole row
  std::vector<LinearGroup> groups;
  std::set<std::string, std::less<>> kept;  // targets whose width no group divides: they stay as they are

  bool calibrated() const {
    return settings.method == Method::awq || settings.method == Method::gptq ||
           settings.method == Method::int8 || settings.compensated;
  }
  // The grid for a matrix of so many columns.
  Grid grid_for(int64_t columns) const;
};

// Errors name what does not go together: kInvalidArgument with `field` the setting, kUnsupported for the model.
//
// Groups: one size for the whole model, as the layouts have it: the largest of `group`, its half, … down to 32
// that divides every target's columns. Matrices that not even 32 divides stay as they are.
Result<Plan> make_plan(const Checkpoint& checkpoint, const Settings& settings);

}  // namespace sluice::quantize
