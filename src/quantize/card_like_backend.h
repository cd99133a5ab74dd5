// For tests: a backend that must be treated as a card, computed by ref/. Activations are bf16; nothing is
// packed or allocated behind reserve() but the pool, which comes only then; weights have a multiple of 8
// columns. Tensors lie in host memory all the same.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "quantize/recording_backend.h"
#include "tensor/half.h"

namespace sluice::quantize {

class CardLikeBackend final : public RecordingBackend {
 public:
  explicit CardLikeBackend(std::unique_ptr<Backend> ref = make_ref_backend())
      : RecordingBackend(*ref), ref_(std::move(ref)) {}

  DeviceInfo info() const override {
    DeviceInfo info = ref_->info();
    info.name = "like a card", info.memory_total = info.memory_bytes;
    return info;
  }
  DType activation_dtype() const override { return DType::bf16; }
  Buffer alloc(size_t bytes) override {
    CHECK(!reserved_, "device memory is decided before the first step");
    return RecordingBackend::alloc(bytes);
  }
  Buffer alloc_pool(size_t bytes, const KvGeometry& g) override {
    CHECK(reserved_, "the pool comes last");
    return RecordingBackend::alloc_pool(bytes, g);
  }
  Status reserve(const WorkspaceShape& shape) override {
    CHECK(!reserved_);
    reserved_ = true;
    return RecordingBackend::reserve(shape);
  }
  Result<Weight> pack(std::span<const PackSource> sources) override {
    CHECK(!reserved_ && sources[0].rows->cols() % 8 == 0);
    return RecordingBackend::pack(sources);
  }
  void rms_norm(const RmsNormArgs& a) override {
    RmsNormArgs args = a;
    with(a.out, args.out, false, [&] { RecordingBackend::rms_norm(args); });
  }
  void add_rms_norm(const AddRmsNormArgs& a) override {
    AddRmsNormArgs args = a;
    with(a.x, args.x, true,
         [&] { with(a.out, args.out, false, [&] { RecordingBackend::add_rms_norm(args); }); });
  }
  void linear(const LinearArgs& a) override {
    CHECK(a.x.dtype == DType::bf16);
    Tensor x, out;
    with(a.x, x, true, [&] {
      with(a.out, out, false, [&] { RecordingBackend::linear({x, a.w, a.bias, out}); });
    });
  }
  void rope_store_kv(const RopeStoreArgs& a) override {
    RopeStoreArgs args = a;
    with(a.qkv, args.qkv, true, [&] { RecordingBackend::rope_store_kv(args); });
  }
  void attention(const AttentionArgs& a) override {
    AttentionArgs args{a};
    with(a.q, args.q, true, [&] { with(a.out, args.out, false, [&] { RecordingBackend::attention(args); }); });
  }
  void act_mul(const ActMulArgs& a) override {
    ActMulArgs args = a;
    with(a.gate_up, args.gate_up, true,
         [&] { with(a.out, args.out, false, [&] { RecordingBackend::act_mul(args); }); });
  }

 private:
  // `work` with a float32 twin of a bf16 tensor, which then gets what came of it. `read`: it is an input.
  static void with(const Tensor& own, Tensor& twin, bool read, const std::function<void()>& work) {
    if (own.dtype == DType::f32) return twin = own, work();
    std::vector<float> values(size_t(own.rows * own.cols));
    twin = {values.data(), DType::f32, own.rows, own.cols, own.cols};
    for (int64_t r = 0; read && r < own.rows; r++)
      for (int64_t c = 0; c < own.cols; c++) twin.row<float>(r)[c] = bf16_to_f32(own.row<uint16_t>(r)[c]);
    work();
    for (int64_t r = 0; r < own.rows; r++)
      for (int64_t c = 0; c < own.cols; c++) own.row<uint16_t>(r)[c] = f32_to_bf16(twin.row<float>(r)[c]);
  }

  const std::unique_ptr<Backend> ref_;
  bool reserved_ = false;
};

}  // namespace sluice::quantize
