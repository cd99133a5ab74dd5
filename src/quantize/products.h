// Matrix products of the methods, on a backend's own kernels: float32 on a CPU; on a card of bf16 factors
// (which is what a card's activations are), with float32 sums.
#pragma once

#include "quantize/matrix.h"
#include "tensor/backend.h"

namespace sluice::quantize {

class Products {
 public:
  // `backend` computes nothing else and outlives this. A CPU's is reserved here for `columns` columns at most,
  // and computes `rows` rows at a time. A card's is never reserved, since it would pack nothing afterwards; its
  // products have at most `rows` rows on either side. Error: too little memory.
  static Result<Products> make(Backend& backend, int64_t rows, int64_t columns);

  // What columns must be a multiple of.
  int64_t column_multiple() const { return card_ ? 16 : 1; }
  // The right side of products to come, packed: [N, K].
  Weight pack(const Matrix& w);
  // [M, N] = x [M, K] · wᵀ.
  void multiply(const Matrix& x, const Weight& w, Matrix& out);

 private:
  Products(Backend& backend, int64_t rows)
      : backend_(backend), rows_(rows), card_(backend.activation_dtype() != DType::f32) {}
  void multiply_on_card(const Matrix& x, const Weight& w, Matrix& out);

  Backend& backend_;
  const int64_t rows_;
  const bool card_;
  Buffer in_, out_;  // of a card: [rows, columns] bf16, [rows, rows] f32
};

}  // namespace sluice::quantize
