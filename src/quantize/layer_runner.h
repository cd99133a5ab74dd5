// One layer of a model over calibration samples: the model's Decoder with a spec of one layer, fed with the
// residuals that the layer before left. So no more than one layer's weights are in memory at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "model/checkpoint.h"
#include "model/decoder.h"
#include "quantize/matrix.h"
#include "quantize/recording_backend.h"

namespace sluice::quantize {

// Tensors that stand for the checkpoint's own, by slot without "blk.N.".
using Replacements = std::map<std::string, Matrix, std::less<>>;

// Which of a layer's products reads what.
enum class Input : uint8_t { qkv, attention_output, gate_up, down };

class LayerRunner {
 public:
  // `backend` computes; both outlive the runner. Reserves the backend: for steps of `max_tokens` rows, and for
  // products of as many rows and columns. Errors: too little memory.
  static Result<std::unique_ptr<LayerRunner>> make(const Checkpoint& checkpoint, Backend& backend,
                                                   int max_tokens);

  // [T, C] the residual that the first layer begins with.
  Matrix embed(std::span<const int32_t> ids) const;

  // Loads a layer; what is in `replaced` comes from there. Errors name the tensor.
  Status load(int layer, const Replacements& replaced);

  // The loaded layer over one sample's residual [T, C], in place. `seen` gets each product's input [T, K]
  // first.
  void run(Matrix& residual, const std::function<void(Input, const Tensor&)>& seen);

 private:
  LayerRunner(const Checkpoint& checkpoint, Backend& backend, int max_tokens);

  const Checkpoint& checkpoint_;
  RecordingBackend backend_;
  const int max_tokens_;
  ModelSpec spec_;  // of the loaded layer
  LayerGroups groups_;
  Weights weights_;
  KvPool pool_;
  Buffer memory_, arrays_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace sluice::quantize
