// Where a quantized model comes into being: a folder OUT.partial with a file per finished layer, from which an
// interrupted run goes on, and which is renamed to OUT (or becomes the file OUT) when nothing is missing.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/families/family.h"
#include "quantize/folder_config.h"
#include "quantize/layer_quantizer.h"

namespace sluice::quantize {

// What a finished model has besides tensors.
struct Companions {
  std::string metadata;          // a JSON object: how it was made
  std::string windows;           // of the calibration text (overlap.h), a line each
  std::string tokenizer_json{};  // of a folder from a GGUF file; empty: none
  std::string tokenizer_config{};
};
inline constexpr const char* kMetadataKey = "sluice_quantization";      // of config.json
inline constexpr const char* kMetadataGgufKey = "sluice.quantization";  // the same as text
inline constexpr const char* kWindowsFile = "sluice_calibration.txt";
inline constexpr const char* kWindowsGgufKey = "sluice.calibration_windows";

class Output {
 public:
  // `identity`: lines "key: value", equal for runs that make the same model. Errors: OUT exists, OUT.partial is
  // of other settings, or another run has it locked; the folder cannot be made.
  static Result<std::unique_ptr<Output>> open(const Checkpoint& checkpoint, const Plan& plan,
                                              const std::string& out, const std::string& identity);

  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Layers 0 .. that are done, counting those of the run that was interrupted.
  int layers_done() const;
  // Residuals of all samples before layer `layer`, one after the other, for a run that goes on there.
  Status save_residuals(int layer, std::span<const Matrix> residuals);
  // Fills `residuals`, whose sizes are known, and says before which layer they stand; nothing: there are none.
  std::optional<int> load_residuals(std::span<Matrix> residuals) const;

  Status write_layer(int layer, const QuantizedLayer& result);
  // The tensors outside of layers and the files beside them; then OUT is there.
  Status finish(const Companions& companions);

 private:
  Output(const Checkpoint& checkpoint, const Plan& plan, std::string out);
  Status lock();
  LinearNames names() const;
  std::string shard(int layer) const;  // layer -1: what is outside of layers
  Result<std::string> config(const std::string& members) const;
  Result<std::vector<OutputTensor>> plain_tensor(const std::string& slot, const Matrix* replaced) const;
  Status kept(Status written) const;
  Status finish_all(const Companions& companions);
  Status finish_folder(const Companions& companions) const;
  Status write_index() const;
  Status write_side_files(const Companions& companions) const;

  const Checkpoint& checkpoint_;
  const Plan& plan_;
  const Family& family_;
  const std::string out_, partial_;
  int lock_ = -1;
};

}  // namespace sluice::quantize
