// A Backend that only owns memory on the card: what parts are handed when they are tested by themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <unordered_set>

#include "base/check.h"
#include "tensor/backend.h"
#include "tensor/cuda/device/cuda_check.h"

namespace sluice::cuda::test {

class MemoryBackend final : public Backend {
 public:
  DeviceInfo info() const override { return {}; }
  Buffer alloc(size_t bytes) override {
    void* p = nullptr;
    CUDA_CHECK(cudaMalloc(&p, bytes));
    CUDA_CHECK(cudaMemset(p, 0, bytes));
    return Buffer(this, p, bytes);
  }
  Buffer alloc_host(size_t bytes) override {
    void* p = nullptr;
    CUDA_CHECK(cudaHostAlloc(&p, bytes, cudaHostAllocDefault));
    pinned_.insert(p);
    return Buffer(this, p, bytes);
  }
  void free(void* data, size_t) override {
    if (pinned_.erase(data))
      CUDA_CHECK(cudaFreeHost(data));
    else
      CUDA_CHECK(cudaFree(data));
  }
  void copy_in(void* device, const void* host, size_t bytes) override {
    CUDA_CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
  }
  void copy_out(void* host, const void* device, size_t bytes) override {
    CUDA_CHECK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
  }
  DType activation_dtype() const override { return DType::bf16; }
  DType kv_dtype() const override { return DType::bf16; }

  Status reserve(const WorkspaceShape&) override { no_op(); }
  size_t kv_block_bytes(const KvGeometry&) const override { no_op(); }
  Result<Weight> pack(std::span<const PackSource>) override { no_op(); }
  void begin_step(const BatchInput&, const KvGeometry&, int) override { no_op(); }
  void embed(const EmbedArgs&) override { no_op(); }
  void rms_norm(const RmsNormArgs&) override { no_op(); }
  void add_rms_norm(const AddRmsNormArgs&) override { no_op(); }
  void linear(const LinearArgs&) override { no_op(); }
  void rope_store_kv(const RopeStoreArgs&) override { no_op(); }
  void attention(const AttentionArgs&) override { no_op(); }
  void act_mul(const ActMulArgs&) override { no_op(); }
  void gather_rows(const Tensor&, const int32_t*, const Tensor&) override { no_op(); }
  void sample(const SampleArgs&) override { no_op(); }
  void copy_blocks(std::byte*, size_t, std::span<const std::pair<int32_t, int32_t>>) override { no_op(); }
  void finish_step() override { no_op(); }

 private:
  [[noreturn]] static void no_op() { check_failed("op", __FILE__, __LINE__, "this backend has memory only"); }

  std::unordered_set<void*> pinned_;
};

}  // namespace sluice::cuda::test
