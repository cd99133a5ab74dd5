// Matrix products of the methods, on the backend's own kernels for f32 weights.
#pragma once

#include "quantize/matrix.h"
#include "tensor/backend.h"

namespace sluice::quantize {

class Products {
 public:
  // `backend` has been reserved for steps of `max_rows` rows and for all columns to come.
  Products(Backend& backend, int64_t max_rows) : backend_(backend), max_rows_(max_rows) {}

  // The right side of products to come, packed: [N, K].
  Weight pack(const Matrix& w);
  // [M, N] = x [M, K] · wᵀ.
  void multiply(const Matrix& x, const Weight& w, Matrix& out);

 private:
  Backend& backend_;
  const int64_t max_rows_;
};

}  // namespace sluice::quantize
