// What the GPU tests share: memory on the card as bf16, and the same values for the judge (ref/) in float32.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/device/cuda_check.h"
#include "tensor/half.h"

namespace sluice::cuda::test {

// The card, one stream. Made once per program. The stream is one that waits for the default stream, where the
// fills and copies below run: some of them return before they are done.
inline const Context& context() {
  static const Context made = [] {
    Context c;
    CUDA_CHECK(cudaStreamCreate(&c.stream));
    CUDA_CHECK(cudaDeviceGetAttribute(&c.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    return c;
  }();
  return made;
}
inline void wait() {
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaStreamSynchronize(context().stream));
}

// Device memory that frees itself; poisoned with 0xff (NaN in every float format), so that what nobody wrote
// shows.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    CUDA_CHECK(cudaMalloc(&data_, bytes + 256));
    CUDA_CHECK(cudaMemset(data_, 0xff, bytes + 256));
  }
  DeviceBytes(DeviceBytes&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_) {}
  DeviceBytes& operator=(DeviceBytes&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~DeviceBytes() { cudaFree(data_); }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

template <typename T>
DeviceBytes upload(const std::vector<T>& host) {
  DeviceBytes device(host.size() * sizeof(T));
  CUDA_CHECK(cudaMemcpy(device.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}
template <typename T>
std::vector<T> download(const void* device, size_t count) {
  wait();
  std::vector<T> host(count);
  CUDA_CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}
inline DeviceBytes upload_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = f32_to_bf16(values[i]);
  return upload(bits);
}
inline std::vector<float> download_bf16(const void* device, size_t count) {
  const auto bits = download<uint16_t>(device, count);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = bf16_to_f32(bits[i]);
  return values;
}

// Normally distributed values that bf16 holds exactly, so that the judge sees the very inputs that the card
// does.
inline std::vector<float> random_bf16(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = bf16_to_f32(f32_to_bf16(normal(rng)));
  return v;
}

inline Tensor bf16_tensor(void* data, int64_t rows, int64_t cols, int64_t stride = 0) {
  return {data, DType::bf16, rows, cols, stride ? stride : cols};
}
inline Tensor f32_tensor(std::vector<float>& v, int64_t rows, int64_t cols) {
  return {v.data(), DType::f32, rows, cols, cols};
}

// ||got - want|| / ||want||; NaN fails.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    size += double(want[i]) * want[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
}

// Median milliseconds of `repeat` calls, by events around each, after two warm ones.
template <typename F>
float median_ms(int repeat, const F& enqueue) {
  cudaEvent_t from, to;
  CUDA_CHECK(cudaEventCreate(&from));
  CUDA_CHECK(cudaEventCreate(&to));
  std::vector<float> times;
  for (int i = -2; i < repeat; ++i) {
    CUDA_CHECK(cudaEventRecord(from, context().stream));
    enqueue();
    CUDA_CHECK(cudaEventRecord(to, context().stream));
    CUDA_CHECK(cudaEventSynchronize(to));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
    if (i >= 0) times.push_back(ms);
  }
  CUDA_CHECK(cudaEventDestroy(from));
  CUDA_CHECK(cudaEventDestroy(to));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}
// The same of `n` calls captured into a graph, milliseconds per call: how a decode step runs them. `enqueue(i)`
// gets the call's number, to rotate over buffers larger than the L2 (60 MB).
template <typename F>
float graph_ms(int n, int repeat, const F& enqueue) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  for (int i = 0; i < n; ++i) enqueue(i);
  wait();
  CUDA_CHECK(cudaStreamBeginCapture(context().stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n; ++i) enqueue(i);
  CUDA_CHECK(cudaStreamEndCapture(context().stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  const float ms = median_ms(repeat, [&] { CUDA_CHECK(cudaGraphLaunch(exec, context().stream)); });
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return ms / float(n);
}

}  // namespace sluice::cuda::test
