#include "tensor/cuda/host_copies.h"

#include <algorithm>
#include <utility>

#include "tensor/cuda/device/cuda_check.h"

namespace sluice::cuda {

void HostCopies::open() {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaEventCreateWithFlags(&saved_, cudaEventDisableTiming));
  for (Marks& m : marks_) {
    CUDA_CHECK(cudaEventCreate(&m.started));
    CUDA_CHECK(cudaEventCreate(&m.ended));
  }
}

HostCopies::~HostCopies() {
  if (!stream_) return;
  cudaStreamSynchronize(stream_);
  for (Marks& m : marks_) cudaEventDestroy(m.started), cudaEventDestroy(m.ended);
  cudaEventDestroy(saved_);
  cudaStreamDestroy(stream_);
}

void HostCopies::hold_back(cudaStream_t compute) {
  if (std::exchange(saving_, false)) CUDA_CHECK(cudaStreamWaitEvent(compute, saved_));
}

void HostCopies::enqueue(int slot, cudaEvent_t before) {
  const HostCopiesArgs args = std::exchange(wanted_, {});
  Marks& marks = marks_[size_t(slot)];
  marks.used = !args.copies.empty();
  if (!marks.used) return;
  CHECK(args.slot == slot, "another step's copies");
  if (before) CUDA_CHECK(cudaStreamWaitEvent(stream_, before));
  CUDA_CHECK(cudaEventRecord(marks.started, stream_));
  for (const HostCopy& copy : args.copies) {
    std::byte* const block = args.pool + copy.pool_offset;
    CUDA_CHECK(cudaMemcpyAsync(copy.to_host ? copy.host : block, copy.to_host ? block : copy.host, copy.bytes,
                               copy.to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream_));
  }
  CUDA_CHECK(cudaEventRecord(marks.ended, stream_));
  size_t all = 0, to_host = 0;
  for (const HostCopy& c : args.copies) all += c.bytes, to_host += c.to_host ? c.bytes : 0;
  marks.to_host_share = all > 0 ? double(to_host) / double(all) : 0;
  saving_ = to_host > 0;
  if (saving_) CUDA_CHECK(cudaEventRecord(saved_, stream_));
}

bool HostCopies::done(int slot) const {
  const Marks& marks = marks_[size_t(slot)];
  if (!marks.used) return true;
  const cudaError_t state = cudaEventQuery(marks.ended);
  if (state == cudaErrorNotReady) return false;
  CUDA_CHECK(state);
  return true;
}

int64_t HostCopies::ns(int slot) const {
  const Marks& marks = marks_[size_t(slot)];
  float ms = 0;
  if (marks.used) CUDA_CHECK(cudaEventElapsedTime(&ms, marks.started, marks.ended));
  return int64_t(double(ms) * 1e6);
}

}  // namespace sluice::cuda
