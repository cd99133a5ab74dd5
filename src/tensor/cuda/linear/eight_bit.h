// Products with weights of eight bits: x is quantized by rows as it comes (rows/quantized_rows.h), then both
// are multiplied as they are, by the streaming kernel for few rows and cuBLASLt for many.
//
// Several products of a layer read the same x, and what makes x (a norm, an activation) can write it quantized
// by the way: so the last quantized tensor is kept, and told apart from others by where it lies. The backend
// says when that memory is written.
#pragma once

#include <set>

#include "base/result.h"
#include "tensor/backend.h"
#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/cuda/rows/quantized_weight.h"

namespace sluice::cuda {

class EightBitLinear {
 public:
  EightBitLinear(const Context& context, CublasLt& cublas, void* stream_workspace)
      : context_(context), cublas_(cublas), stream_workspace_(stream_workspace) {}

  // A weight of a model, at load; bf16 ones too.
  void prepare(const Weight& w);
  // Room for x, quantized, of steps of up to so many rows; once, after the last weight. Error: no memory.
  Status reserve(Backend& backend, int64_t max_rows);
  // Enqueues the product; w has eight bits.
  void run(const LinearArgs& a);

  // Where the kernel that writes `out` should write it quantized too: null where no eight-bit weight has as
  // many columns. From then on products of `out` take that.
  const QuantizedRows* copy_wanted(const Tensor& out);
  // Whether nothing else than products with eight-bit weights can want a tensor of so many columns.
  bool only_eight_bits(int64_t cols) const;
  // `out` has been, or is being, written by a kernel that quantizes nothing.
  void written(const Tensor& out);

 private:
  QuantizedRows place_for(const Tensor& x, Factors factors) const;
  void run_sums(const LinearArgs& a, const QuantizedRows& x, const QuantizedWeight& w);

  const Context& context_;
  CublasLt& cublas_;
  void* const stream_workspace_;
  std::map<int64_t, Factors> wanted_;  // by columns
  std::set<int64_t> bf16_columns_;
  int64_t most_columns_ = 0, most_sums_ = 0, max_rows_ = 0;
  Buffer x_, scales_, sums_;
  Tensor held_;  // what x_ has, by the place of the original; no data: nothing
  QuantizedRows held_as_;
};

}  // namespace sluice::cuda
