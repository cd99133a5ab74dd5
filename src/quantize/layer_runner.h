// One layer of a model over calibration samples: the model's Decoder with a spec of one layer, fed with the
// residuals that the layer before left. So no more than one layer's weights are in memory at a time. A layer
// gets a backend of its own: a card's memory is decided before its first step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "model/checkpoint.h"
#include "model/decoder.h"
#include "quantize/matrix.h"
#include "quantize/recording_backend.h"

namespace sluice::quantize {

// Tensors that stand for the checkpoint's own, by slot without "blk.N.".
using Replacements = std::map<std::string, Matrix, std::less<>>;

// Which of a layer's products reads what.
enum class Input : uint8_t { qkv, attention_output, gate_up, down };

// A new backend, always of the same device.
using BackendMaker = std::function<Result<std::unique_ptr<Backend>>()>;

class LayerRunner {
 public:
  // Samples have at most `max_tokens` tokens. `checkpoint` outlives the runner.
  LayerRunner(const Checkpoint& checkpoint, BackendMaker make_backend, int max_tokens);

  // [T, C] the residual that the first layer begins with.
  Matrix embed(std::span<const int32_t> ids) const;

  // Loads a layer; what is in `replaced` comes from there. Errors: the backend's, too little memory, and those
  // of the weights, which name the tensor.
  Status load(int layer, const Replacements& replaced);

  // The loaded layer over one sample's residual [T, C], in place. `seen` gets each product's input [T, K] as
  // float32 in host memory first.
  void run(Matrix& residual, const std::function<void(Input, const Tensor&)>& seen);

 private:
  Status allocate();
  Tensor on_host(const Tensor& x, Matrix& copy);

  const Checkpoint& checkpoint_;
  const BackendMaker make_backend_;
  const int max_tokens_;
  std::unique_ptr<Backend> backend_;  // of the loaded layer, as all that follows
  std::optional<RecordingBackend> recording_;
  ModelSpec spec_;
  LayerGroups groups_;
  Weights weights_;
  KvPool pool_;
  Buffer memory_, arrays_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace sluice::quantize
