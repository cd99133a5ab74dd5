#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>

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

// Rounds w column after column and moves each error into the columns to come. `round(row, column, weights of
// the row)` gives the value that the column's weight becomes. A row's columns depend on that row alone; a few
// rows at a time share each line of the factor.
template <typename Round>
void compensate(Matrix& w, const Matrix& factor, int threads, const Round& round) {
  constexpr int64_t kRows = 8;
  parallel_rows(threads, (w.rows + kRows - 1) / kRows, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kRows; first < std::min(end * kRows, w.rows); first += kRows) {
      const int64_t last = std::min(first + kRows, w.rows);
      for (int64_t c = 0; c < w.cols; c++) {
        const float* line = factor.row(c).data();
        for (int64_t r = first; r < last; r++) {
          float* row = w.row(r).data();
          const float error = (row[c] - round(r, c, row)) / line[c];
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

IntegerMatrix quantize_gptq(Matrix w, const Matrix& factor, const Grid& grid, int threads) {
  CHECK(w.cols % grid.group == 0 && factor.rows == w.cols);
  const int64_t groups = w.cols / grid.group;
  IntegerMatrix m{w.rows,
                  w.cols,
                  grid.group,
                  grid.bits,
                  std::vector<uint8_t>(w.values.size()),
                  std::vector<float>(size_t(w.rows * groups)),
                  std::vector<uint8_t>(size_t(w.rows * groups))};
  compensate(w, factor, threads, [&](int64_t r, int64_t c, const float* row) {
    const size_t at = size_t(r * groups + c / grid.group);
    if (c % grid.group == 0) {
      const auto [low, high] = std::minmax_element(row + c, row + c + grid.group);
      const Step step = step_for(*low, *high, grid);
      m.scale[at] = step.scale, m.zero[at] = step.zero;
    }
    const Step step{m.scale[at], m.zero[at]};
    const uint8_t q = step.encode(row[c], grid.bits);
    m.q[size_t(r * m.cols + c)] = q;
    return step.decode(q);
  });
  return m;
}

FloatMatrix compensate_float8(Matrix w, const Matrix& factor, int64_t block, int threads) {
  FloatMatrix m = to_float8(w, block);
  const int64_t columns = (w.cols + m.block_cols - 1) / m.block_cols;
  compensate(w, factor, threads, [&](int64_t r, int64_t c, const float* row) {
    const float scale = m.scale[size_t(r / m.block_rows * columns + c / m.block_cols)];
    const uint8_t bits = f32_to_e4m3(row[c] / scale);
    m.bits[size_t(r * m.cols + c)] = bits;
    return e4m3_to_f32(bits) * scale;
  });
  return m;
}

}  // namespace sluice::quantize
