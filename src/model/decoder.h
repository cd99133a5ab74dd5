// The forward pass: spec + weights + backend. One class for all families; what differs is numbers in the spec.
#pragma once

#include "model/spec.h"
#include "model/weights.h"
#include "tensor/backend.h"

namespace sluice {

// The block pool's memory on the device.
struct KvPool {
  std::byte* data = nullptr;
  size_t block_bytes = 0;
  KvGeometry geometry;
};

// Told of what each op of a step gives, in order; may change it. The ops have done their work when they return.
class OpWatch {
 public:
  virtual void after(int layer, const char* op, const Tensor& out) = 0;  // layer -1: of none

 protected:
  ~OpWatch() = default;
};

class Decoder {
 public:
  // Activations are allocated here, once, for steps of at most `max_tokens` rows and `max_logit_rows` rows of
  // logits at a time.
  Decoder(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights, Backend& backend,
          int max_tokens, int max_logit_rows);

  // Runs all layers over the step. Afterwards `logits` may be called for any of the step's logit rows. Rows
  // without logits leave the last layer once its keys and values are stored. logit_index ascends, so that as
  // many logit rows as rows are all of them.
  void forward(const BatchInput& batch, const KvPool& kv);

  // Logits [count, V] f32 of rows logit_index[first .. first + count), count <= max_logit_rows. Valid until the
  // next call.
  Tensor logits(const BatchInput& batch, int first, int count);

  // Of the steps to come; null: nobody.
  void set_watch(OpWatch* watch) { watch_ = watch; }

  // [count, C] what those logits are made of: the rows' last hidden states after the final norm, in
  // activation_dtype.
  Tensor hidden(const BatchInput& batch, int first, int count) const;

  size_t activation_bytes() const;
  size_t wanted_bytes() const { return wanted_bytes_; }  // the same, also where they could not be allocated

 private:
  void project(const Tensor& x, const SideBySide& weights, const float* bias, const Tensor& out);
  void add_norm(const Tensor& hidden, const Tensor& x, const Buffer& post_norm, const Buffer& norm);
  void feed_forward(int layer, const Tensor& normed);
  void tell(int layer, const char* op, const Tensor& out) {
    if (watch_) [[unlikely]]
      watch_->after(layer, op, out);
  }
  void pick_rows(const BatchInput& batch, Tensor& attended, Tensor& hidden, Tensor& normed);

  const ModelSpec& spec_;
  const LayerGroups& groups_;
  const Weights& weights_;
  Backend& backend_;
  int max_tokens_;
  int max_logit_rows_;
  size_t wanted_bytes_ = 0;
  OpWatch* watch_ = nullptr;
  Buffer arena_;
  Tensor hidden_, normed_, qkv_, attended_, gate_up_, gated_, router_, gathered_, routing_, picked_,
      picked_hidden_, logits_;
};

}  // namespace sluice
