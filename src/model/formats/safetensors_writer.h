// Writes what safetensors.h reads.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

// A tensor on its way into a file; owns its bytes, little-endian, row-major.
struct OutputTensor {
  std::string name;
  std::string type;            // "F32", "I32", … as in the header
  std::vector<int64_t> shape;  // slowest first
  std::vector<std::byte> data;
};

// One file, which appears when it is whole. The same tensors give the same bytes. `metadata` stands in the
// header under "__metadata__". Errors: kIo.
Status write_safetensors(const std::string& path, std::span<const OutputTensor> tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace sluice
