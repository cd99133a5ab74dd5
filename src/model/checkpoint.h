// A model on disk, whatever its format: its numbers, its tensors by slot name, and its metadata for tokenizer
// and template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/spec.h"
#include "tensor/tensor.h"

namespace sluice {

class GgufFile;

// One line of `sluice inspect`.
struct TensorInfo {
  std::string name;            // as in the file; of a layer that several tensors hold, what theirs begin with
  std::string type;            // as in the file: "Q4_1", "BF16"; of such a layer "AWQ 4-bit"
  std::vector<int64_t> shape;  // slowest first: rows, then columns
  size_t bytes = 0;
  WeightFormat canonical;
  bool lossy = false;  // the conversion to the canonical format rounds (beyond float rounding of scales)
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual const std::string& path() const = 0;
  virtual std::string format() const = 0;  // "GGUF v3", "safetensors"
  virtual const ModelSpec& spec() const = 0;
  virtual std::vector<TensorInfo> tensors() const = 0;

  // Rows of the tensor of a slot: "blk.3.attn_q.weight", "token_embd.weight" (GGUF's names serve as slot names;
  // the safetensors reader maps Hugging Face names to them). Null if there is none.
  virtual std::unique_ptr<RowSource> rows(std::string_view slot) const = 0;
  // For q/k of checkpoints whose rotation interleaves: stored row of each row in half-split order. Empty: as
  // stored. Of a bias: stored element of each element.
  virtual std::vector<int32_t> row_order(std::string_view slot) const = 0;
  // The slot's pages leave this process's memory, once it is packed; they are read from the file again if
  // touched.
  virtual void release(std::string_view slot) const = 0;

  // The GGUF header (tokenizer and template live in it), or null for a folder.
  virtual const GgufFile* gguf() const = 0;
  // A file of the folder beside the weights, read whole ("tokenizer.json"); error kNotFound if absent or a lone
  // GGUF.
  virtual Result<std::string> side_file(std::string_view name) const = 0;
};

// A .gguf file, a Hugging Face folder, or "dummy:SHAPE" (dummy_checkpoint.h). Every count, offset, shape and
// type that the model needs is checked here, before any weight is read: rows() then answers for every slot of
// the spec. Errors are one line naming file and key or tensor.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path);

}  // namespace sluice
