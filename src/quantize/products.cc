#include "quantize/products.h"

#include <algorithm>
#include <array>

#include "quantize/matrix_rows.h"
#include "tensor/half.h"

namespace sluice::quantize {
namespace {

int64_t rounded(int64_t rows) {
  return (rows + kRowsLeftToBackend - 1) / kRowsLeftToBackend * kRowsLeftToBackend;
}

}  // namespace

Result<Products> Products::make(Backend& backend, int64_t rows, int64_t columns) {
  Products out(backend, rows);
  const Error none{ErrorCode::kResourceExhausted, "not enough memory for the methods' matrix products"};
  if (!out.card_) {
    // Nothing but products is asked for: one head of one block.
    if (!backend.reserve({.max_tokens = int(rows),
                          .max_sequences = 1,
                          .max_columns = int(columns),
                          .max_heads = 1,
                          .head_dim = 64,
                          .max_context = 64,
                          .vocab = 1,
                          .max_logit_rows = 1,
                          .kv = {.layers_per_group = 1, .kv_heads = 1, .head_dim = 64}}))
      return none;
    return out;
  }
  out.in_ = backend.alloc(size_t(rounded(rows)) * size_t(columns) * sizeof(uint16_t));
  out.out_ = backend.alloc(size_t(rounded(rows)) * size_t(rows) * sizeof(float));
  if (!out.in_.data() || !out.out_.data()) return none;
  return out;
}

Weight Products::pack(const Matrix& w) {
  const MatrixRows rows(w);
  const std::array source = {Backend::PackSource{&rows, {}}};
  Result<Weight> packed = backend_.pack(source);
  CHECK(packed.ok(), "every backend takes f32");
  return std::move(*packed);
}

void Products::multiply(const Matrix& x, const Weight& w, Matrix& out) {
  CHECK(x.cols == w.cols);
  out.rows = x.rows, out.cols = w.rows;
  out.values.resize(size_t(x.rows) * size_t(w.rows));
  if (card_) return multiply_on_card(x, w, out);
  for (int64_t first = 0; first < x.rows; first += rows_) {
    const int64_t count = std::min(rows_, x.rows - first);
    const Tensor in{const_cast<float*>(x.row(first).data()), DType::f32, count, x.cols, x.cols};
    backend_.linear({in, w, nullptr, {out.row(first).data(), DType::f32, count, out.cols, out.cols}});
  }
  backend_.finish_step();
}

void Products::multiply_on_card(const Matrix& x, const Weight& w, Matrix& out) {
  const size_t in_bytes = x.values.size() * sizeof(uint16_t), out_bytes = out.values.size() * sizeof(float);
  CHECK(x.rows <= rows_ && in_bytes <= in_.bytes() && out_bytes <= out_.bytes());
  std::vector<uint16_t> half(x.values.size());
  std::transform(x.values.begin(), x.values.end(), half.begin(), f32_to_bf16);
  backend_.copy_in(in_.data(), half.data(), in_bytes);
  backend_.linear({{in_.data(), DType::bf16, x.rows, x.cols, x.cols},
                   w,
                   nullptr,
                   {out_.data(), DType::f32, out.rows, out.cols, out.cols}});
  backend_.finish_step();
  backend_.copy_out(out.values.data(), out_.data(), out_bytes);
}

}  // namespace sluice::quantize
