#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "quantize/parallel.h"
#include "tensor/fp8.h"

namespace sluice::quantize {
namespace {

constexpr int64_t kPanel =
    64;  // columns that are taken together, so that a row is fetched once for all of them

// h = M·Mᵀ with M upper triangular, in place (below the diagonal stays what was there). False: not positive
// definite.
bool factor_upper(Matrix& h, int threads) {
  Matrix panel(kPanel, h.rows);  // the columns of M that are done but not taken from those before them, as rows
  for (int64_t end = h.rows; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - kPanel);
    for (int64_t j = end - 1; j >= begin; j--) {
      const float pivot = h.row(j)[size_t(j)];
      if (!(pivot > 0) || !std::isfinite(pivot)) return false;
      const float root = std::sqrt(pivot);
      float* column = panel.row(j - begin).data();
      for (int64_t i = 0; i <= j; i++) column[i] = h.row(i)[size_t(j)] /= root;
      for (int64_t i = 0; i < j; i++)
        for (int64_t k = std::max(i, begin); k < j; k++) h.row(i)[size_t(k)] -= column[i] * column[k];
    }
    parallel_rows(threads, begin, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        float* row = h.row(i).data();
        for (int64_t j = end - 1; j >= begin; j--) {
          const float* column = panel.row(j - begin).data();
          const float by = column[i];
          for (int64_t k = i; k < begin; k++) row[k] -= by * column[k];
        }
      }
    });
    end = begin;
  }
  return true;
}

// Columns depend on themselves alone; those of a panel lie together while they are made, since rows a power of
// two apart would share a few lines of the processor's cache.
Matrix invert_upper(const Matrix& m, int threads) {
  const int64_t n = m.rows;
  Matrix u(n, n);
  parallel_rows(threads, (n + kPanel - 1) / kPanel, [&](int64_t first, int64_t last) {
    for (int64_t begin = first * kPanel; begin < std::min(last * kPanel, n); begin += kPanel) {
      const int64_t end = std::min(begin + kPanel, n), width = end - begin;
      Matrix panel(end, width);
      for (int64_t i = end - 1; i >= 0; i--) {
        float* row = panel.row(i).data();
        if (i >= begin) row[i - begin] = 1;
        for (int64_t k = i + 1; k < end; k++) {
          const float by = m.row(i)[size_t(k)];
          const float* from = panel.row(k).data();
          for (int64_t c = 0; c < width; c++) row[c] -= by * from[c];
        }
        const float pivot = m.row(i)[size_t(i)];
        for (int64_t c = 0; c < width; c++) u.row(i)[size_t(begin + c)] = row[c] /= pivot;
      }
    }
  });
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

Matrix inverse_factor(Matrix h, double damping, int threads) {
  CHECK(h.rows == h.cols);
  double mean = 0;
  for (int64_t i = 0; i < h.rows; i++) mean += double(h.row(i)[size_t(i)]) / double(h.rows);
  for (int64_t i = 0; i < h.rows; i++)
    if (h.row(i)[size_t(i)] == 0) h.row(i)[size_t(i)] = mean > 0 ? float(mean) : 1;
  for (double added = damping * (mean > 0 ? mean : 1);; added *= 10) {
    Matrix m = h;
    for (int64_t i = 0; i < h.rows; i++) m.row(i)[size_t(i)] += float(added);
    if (factor_upper(m, threads)) return invert_upper(m, threads);
    CHECK(added < 1e30, "a diagonal that large is positive definite");
  }
}

Compensation compensation_of(const Matrix& hessian, double damping, int threads) {
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
  out.factor = inverse_factor(std::move(ordered), damping, threads);
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
