// A checkpoint quantized, layer by layer: what `sluice quantize` does.
#pragma once

#include <functional>
#include <string>

#include "quantize/calibration.h"
#include "quantize/layer_runner.h"
#include "quantize/output.h"
#include "quantize/plan.h"

namespace sluice::quantize {

struct Job {
  const Checkpoint& checkpoint;
  const Plan& plan;
  const Calibration* calibration = nullptr;          // where the plan is calibrated
  std::string out;                                   // a folder, or a file *.gguf
  std::string tokenizer_json{}, tokenizer_config{};  // of a folder from a GGUF file
  BackendMaker make_backend;  // computes layers, a new one each; on a card, second moments too
  Backend& host;              // of the CPU: the methods' products; for nothing else
  int threads = 1;
  std::function<void(double)> progress{};  // 0..1 of the layers
  std::function<void(int)> resumes{};      // called with the layer at which an interrupted run goes on
};

// In memory: one layer, what its calibration keeps, and the samples' residuals. A run that was interrupted goes
// on where it was if it is started again with the same arguments, and ends in the same bytes. Errors: Output's,
// read_tensor's, too little memory.
Status quantize_model(const Job& job);

// The JSON object that says how a model was made.
std::string metadata(const Job& job);

// The passages that a quantized checkpoint was calibrated on; none: it was not, or does not say.
std::vector<uint64_t> calibration_passages(const Checkpoint& checkpoint);

}  // namespace sluice::quantize
