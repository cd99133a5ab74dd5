#include "quantize/products.h"

#include <algorithm>
#include <array>

#include "quantize/matrix_rows.h"

namespace sluice::quantize {

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
  for (int64_t first = 0; first < x.rows; first += max_rows_) {
    const int64_t count = std::min(max_rows_, x.rows - first);
    const Tensor in{const_cast<float*>(x.row(first).data()), DType::f32, count, x.cols, x.cols};
    backend_.linear({in, w, nullptr, {out.row(first).data(), DType::f32, count, out.cols, out.cols}});
  }
  backend_.finish_step();
}

}  // namespace sluice::quantize
