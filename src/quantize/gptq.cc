#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "quantize/parallel.h"
#include "tensor/fp8.h"

namespace sluice::quantize {
namespace {

// h = M·Mᵀ with M upper triangular, in place (below the diagonal stays what was there). False: not positive
// definite.
bool factor_upper(Matrix& h) {
  const int64_t n = h.rows;
  std::vector<float> column(static_cast<size_t>(n));
  for (int64_t j = n - 1; j >= 0; j--) {
    const float pivot = h.row(j)[size_t(j)];
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    const float root = std::sqrt(pivot);
    for (int64_t i = 0; i <= j; i++) column[size_t(i)] = h.row(i)[size_t(j)] / root;
    for (int64_t i = 0; i < j; i++) {
      float* row = h.row(i).data();
      const float by = column[size_t(i)];
      for (int64_t k = i; k < j; k++) row[k] -= by * column[size_t(k)];
    }
    for (int64_t i = 0; i <= j; i++) h.row(i)[size_t(j)] = column[size_t(i)];
  }
  return true;
}

Matrix invert_upper(const Matrix& m) {
  const int64_t n = m.rows;
  Matrix u(n, n);
  for (int64_t i = n - 1; i >= 0; i--) {
    float* row = u.row(i).data();
    row[i] = 1;
    for (int64_t k = i + 1; k < n; k++) {
      const float by = m.row(i)[size_t(k)];
      const float* from = u.row(k).data();
      for (int64_t c = k; c < n; c++) row[c] -= by * from[c];
    }
    const float pivot = m.row(i)[size_t(i)];
    for (int64_t c = i; c < n; c++) row[c] /= pivot;
  }
  return u;
}

// Rounds w column after column and moves each error into the columns to come. `round(row, column, weight)`
// gives the value that the weight becomes. A row's columns depend on that row alone; a few rows at a time share
// each line of the factor.
template <typename Round>
void compensate(const Matrix& original, const Compensation& by, int threads, const Round& round) {
  constexpr int64_t kRows = 8;
  const Matrix& factor = by.factor;
  CHECK(factor.rows == original.cols && by.order.size() == size_t(original.cols));
  Matrix w(original.rows, original.cols);  // its columns in order
  for (int64_t r = 0; r < w.rows; r++)
    for (size_t c = 0; c < by.order.size(); c++) w.row(r)[c] = original.row(r)[size_t(by.order[c])];
  parallel_rows(threads, (w.rows + kRows - 1) / kRows, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kRows; first < std::min(end * kRows, w.rows); first += kRows) {
      const int64_t last = std::min(first + kRows, w.rows);
      for (int64_t c = 0; c < w.cols; c++) {
        const float* line = factor.row(c).data();
        for (int64_t r = first; r < last; r++) {
          float* row = w.row(r).data();
          const float error = (row[c] - round(r, by.order[size_t(c)], row[c])) / line[c];
          for (int64_t j = c + 1; j < w.cols; j++) row[j] -= error * line[j];
        }
      }
    }
  });
}

}  // namespace

Matrix inverse_factor(Matrix h, double damping) {
  CHECK(h.rows == h.cols);
  double mean = 0;
  for (int64_t i = 0; i < h.rows; i++) mean += double(h.row(i)[size_t(i)]) / double(h.rows);
  for (int64_t i = 0; i < h.rows; i++)
    if (h.row(i)[size_t(i)] == 0) h.row(i)[size_t(i)] = mean > 0 ? float(mean) : 1;
  for (double added = damping * (mean > 0 ? mean : 1);; added *= 10) {
    Matrix m = h;
    for (int64_t i = 0; i < h.rows; i++) m.row(i)[size_t(i)] += float(added);
    if (factor_upper(m)) return invert_upper(m);
    CHECK(added < 1e30, "a diagonal that large is positive definite");
  }
}

Compensation compensation_of(const Matrix& hessian, double damping) {
  const int64_t n = hessian.rows;
  Compensation out{std::vector<int32_t>(static_cast<size_t>(n)), {}};
  std::iota(out.order.begin(), out.order.end(), 0);
  const auto carried = [&](int32_t c) { return hessian.row(c)[size_t(c)]; };
  std::stable_sort(out.order.begin(), out.order.end(),
                   [&](int32_t a, int32_t b) { return carried(a) > carried(b); });
  Matrix ordered(n, n);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      ordered.row(i)[size_t(j)] = hessian.row(out.order[size_t(i)])[size_t(out.order[size_t(j)])];
  out.factor = inverse_factor(std::move(ordered), damping);
  return out;
}

IntegerMatrix quantize_gptq(const Matrix& w, const Compensation& by, const Grid& grid, int threads) {
  IntegerMatrix m = round_to_nearest(w, grid);
  compensate(w, by, threads, [&](int64_t r, int64_t c, float weight) {
    const size_t at = size_t(r * m.groups() + c / grid.group);
    const Step step{m.scale[at], m.zero[at]};
    const uint8_t q = step.encode(weight, grid.bits);
    m.q[size_t(r * m.cols + c)] = q;
    return step.decode(q);
  });
  return m;
}

FloatMatrix compensate_float8(const Matrix& w, const Compensation& by, int64_t block, int threads) {
  FloatMatrix m = to_float8(w, block);
  const int64_t columns = (w.cols + m.block_cols - 1) / m.block_cols;
  compensate(w, by, threads, [&](int64_t r, int64_t c, float weight) {
    const float scale = m.scale[size_t(r / m.block_rows * columns + c / m.block_cols)];
    const uint8_t bits = f32_to_e4m3(weight / scale);
    m.bits[size_t(r * m.cols + c)] = bits;
    return e4m3_to_f32(bits) * scale;
  });
  return m;
}

}  // namespace sluice::quantize
