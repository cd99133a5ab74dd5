// Blocks between the pool and pinned host memory, beside the steps (Backend::copy_host): on a stream of their
// own, ordered with the steps by events.
//
// A step's copies start when the step before has ended, after the copies of earlier steps, one after the other.
// The next step's ops wait for those to the host, whose blocks they may write to. They are enqueued when the
// step's ops have been, so that asking for some hundred copies does not keep the card waiting for its work.
//
// One stream for both directions: a block may go to the host in one step and its place be filled from the host
// in the next.
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "tensor/backend.h"

namespace sluice::cuda {

class HostCopies {
 public:
  HostCopies() = default;
  HostCopies(const HostCopies&) = delete;
  ~HostCopies();
  // Makes stream and events on the current card; once, before the rest.
  void open();

  // The compute stream waits for what the step before copies to the host. At the start of each step.
  void hold_back(cudaStream_t compute);
  // A step's copies; they stay alive until `enqueue`.
  void want(const HostCopiesArgs& args) { wanted_ = args; }
  // When the step's ops have been enqueued. `before`: the end of the step before; null: there was none.
  void enqueue(int slot, cudaEvent_t before);

  bool done(int slot) const;
  // How long they took, those before them and the wait left out; 0: there were none. Once done.
  int64_t ns(int slot) const;
  // Of their bytes, those that went to the host.
  double to_host_share(int slot) const { return marks_[size_t(slot)].to_host_share; }

 private:
  struct Marks {
    cudaEvent_t started = nullptr, ended = nullptr;
    bool used = false;
    double to_host_share = 0;
  };
  cudaStream_t stream_ = nullptr;
  cudaEvent_t saved_ = nullptr;  // the last copies to the host that were enqueued
  bool saving_ = false;          // by the step before
  std::array<Marks, kStepsInFlight> marks_{};
  HostCopiesArgs wanted_{};
};

}  // namespace sluice::cuda
