// A checkpoint as plain data, for `sluice inspect` and the admin routes. No pointers into the file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"

namespace sluice {

struct ModelSummary {
  std::string path;
  std::string format;  // "GGUF v3", "safetensors"
  std::string architecture;
  std::string name;
  uint64_t parameters = 0;    // numbers in the tensors that the model uses; a tied head is not counted twice
  uint64_t tensor_bytes = 0;  // as stored, of all tensors
  std::string quantization;   // the type that most parameters have: "Q4_1"
  bool lossy = false;         // some tensor's conversion rounds
  // The spec's numbers in reading order, as text with units: {"layers", "30"}, {"head width", "64"}, …
  std::vector<std::pair<std::string, std::string>> numbers;
  std::vector<TensorInfo> tensors;  // in file order
};

ModelSummary summarize(const Checkpoint& checkpoint);

// "int4, groups of 32, with minimum", "bf16".
std::string describe(const WeightFormat& format);

}  // namespace sluice
