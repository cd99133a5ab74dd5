// A backend that shows the inputs of linear layers on their way, and begins a step with a given residual
// instead of an embedding; else it is the one behind it. So calibration runs the model's own Decoder, one layer
// at a time.
#pragma once

#include <functional>

#include "tensor/backend.h"

namespace sluice::quantize {

class RecordingBackend : public Backend {
 public:
  explicit RecordingBackend(Backend& inner) : inner_(inner) {}

  std::function<void(const LinearArgs&)> on_linear{};  // before the product
  std::function<void(const Tensor&)> on_embed{};       // writes the residual [T, C]

  DeviceInfo info() const override { return inner_.info(); }
  Buffer alloc(size_t bytes) override { return inner_.alloc(bytes); }
  void free(void* data, size_t bytes) override { inner_.free(data, bytes); }
  void copy_in(void* to, const void* from, size_t bytes) override { inner_.copy_in(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { inner_.copy_out(to, from, bytes); }
  Status reserve(const WorkspaceShape& shape) override { return inner_.reserve(shape); }
  Buffer alloc_pool(size_t bytes, const KvGeometry& g) override { return inner_.alloc_pool(bytes, g); }
  DType activation_dtype() const override { return inner_.activation_dtype(); }
  DType kv_dtype() const override { return inner_.kv_dtype(); }
  size_t kv_block_bytes(const KvGeometry& g) const override { return inner_.kv_block_bytes(g); }
  Result<Weight> pack(std::span<const PackSource> sources) override { return inner_.pack(sources); }
  void begin_step(const BatchInput& batch, const KvGeometry& g, int heads) override {
    inner_.begin_step(batch, g, heads);
  }
  void embed(const EmbedArgs& a) override { on_embed(a.out); }
  void rms_norm(const RmsNormArgs& a) override { inner_.rms_norm(a); }
  void add_rms_norm(const AddRmsNormArgs& a) override { inner_.add_rms_norm(a); }
  void linear(const LinearArgs& a) override {
    if (on_linear) on_linear(a);
    inner_.linear(a);
  }
  void rope_store_kv(const RopeStoreArgs& a) override { inner_.rope_store_kv(a); }
  void attention(const AttentionArgs& a) override { inner_.attention(a); }
  void act_mul(const ActMulArgs& a) override { inner_.act_mul(a); }
  void experts(const ExpertsArgs& a) override { inner_.experts(a); }
  void gather_rows(const Tensor& x, const int32_t* index, const Tensor& out) override {
    inner_.gather_rows(x, index, out);
  }
  void sample(const SampleArgs& a) override { inner_.sample(a); }
  void copy_blocks(std::byte* pool, size_t bytes,
                   std::span<const std::pair<int32_t, int32_t>> from_to) override {
    inner_.copy_blocks(pool, bytes, from_to);
  }
  void finish_step() override { inner_.finish_step(); }

 private:
  Backend& inner_;
};

}  // namespace sluice::quantize
