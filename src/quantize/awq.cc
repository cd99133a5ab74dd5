#include "quantize/awq.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quantize/parallel.h"

namespace sluice::quantize {
namespace {

constexpr int kExponents = 20;
constexpr int64_t kSearchRows = 256;  // of a weight, evenly spread: enough to tell one exponent from the next
constexpr int kClipSteps = 10;        // of 5 % each

Matrix some_rows(const Matrix& w) {
  const int64_t count = std::min(w.rows, kSearchRows);
  Matrix out(count, w.cols);
  for (int64_t r = 0; r < count; r++) {
    const auto from = w.row(r * w.rows / count);
    std::copy(from.begin(), from.end(), out.row(r).begin());
  }
  return out;
}

std::vector<float> candidate(const std::vector<float>& mean, double exponent) {
  std::vector<float> s;
  float low = std::numeric_limits<float>::max(), high = 0;
  for (const float m : mean) {
    s.push_back(float(std::pow(std::max(double(m), 1e-4), exponent)));
    low = std::min(low, s.back()), high = std::max(high, s.back());
  }
  const float middle = std::sqrt(low * high);
  for (float& f : s) f /= middle;
  return s;
}

// The mean over the columns that share.
std::vector<float> shared(std::vector<float> mean, const ColumnSharing& sharing) {
  if (sharing.run == 0) return mean;
  const int64_t block = sharing.run * sharing.heads;
  for (size_t begin = 0; begin < mean.size(); begin += size_t(block)) {
    for (int64_t d = 0; d < sharing.run; d++) {
      float sum = 0;
      for (int64_t h = 0; h < sharing.heads; h++) sum += mean[begin + size_t(h * sharing.run + d)];
      for (int64_t h = 0; h < sharing.heads; h++)
        mean[begin + size_t(h * sharing.run + d)] = sum / float(sharing.heads);
    }
  }
  return mean;
}

// What w is after its scaled columns were rounded and the factors divided out again.
Matrix rounded_scaled(const Matrix& w, const std::vector<float>& s, const Grid& grid) {
  Matrix scaled = w;
  for (int64_t r = 0; r < w.rows; r++)
    for (size_t c = 0; c < s.size(); c++) scaled.row(r)[c] *= s[c];
  Matrix out = dequantize(round_to_nearest(scaled, grid));
  for (int64_t r = 0; r < w.rows; r++)
    for (size_t c = 0; c < s.size(); c++) out.row(r)[c] /= s[c];
  return out;
}

// dᵀ H d of a group, H the group's block of the hessian; `line` is scratch. Rows of H are added up rather than
// multiplied out one by one: such sums run in vectors without being reordered.
double group_error(const std::vector<float>& d, const Matrix& hessian, int64_t first,
                   std::vector<float>& line) {
  std::fill(line.begin(), line.end(), 0.0f);
  for (size_t i = 0; i < d.size(); i++) {
    const float* h = hessian.row(first + int64_t(i)).data() + first;
    const float by = d[i];
    for (size_t j = 0; j < line.size(); j++) line[j] += by * h[j];
  }
  double sum = 0;
  for (size_t i = 0; i < d.size(); i++) sum += double(line[i]) * double(d[i]);
  return sum;
}

}  // namespace

double output_error(const Matrix& w, const Matrix& other, const Weight& hessian, Products& products) {
  Matrix d(w.rows, w.cols), product;
  for (size_t i = 0; i < d.values.size(); i++) d.values[i] = other.values[i] - w.values[i];
  products.multiply(d, hessian, product);
  double sum = 0;
  for (size_t i = 0; i < d.values.size(); i++) sum += double(d.values[i]) * double(product.values[i]);
  return sum;
}

std::vector<float> search_scales(std::span<const Matrix* const> weights, const Statistics& input,
                                 const Grid& grid, const ColumnSharing& sharing, Products& products) {
  std::vector<Matrix> samples;
  for (const Matrix* w : weights) samples.push_back(some_rows(*w));
  const Weight hessian = products.pack(input.hessian());
  const std::vector<float> mean = shared(input.mean(), sharing);
  std::vector<float> best;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kExponents; i++) {
    std::vector<float> s = candidate(mean, double(i) / kExponents);
    double error = 0;
    for (size_t w = 0; w < samples.size(); w++)
      error += output_error(samples[w], rounded_scaled(samples[w], s, grid), hessian, products) *
               (double(weights[w]->rows) / double(samples[w].rows));
    if (error < least || best.empty()) least = error, best = std::move(s);
  }
  return best;
}

Ranges search_clips(const Matrix& w, const Statistics& input, const Grid& grid, int threads) {
  Ranges ranges = ranges_of(w, grid.group);
  const int64_t groups = w.cols / grid.group;
  parallel_rows(threads, w.rows, [&](int64_t begin, int64_t end) {
    std::vector<float> d(size_t(grid.group)), line(d.size());
    for (int64_t i = begin * groups; i < end * groups; i++) {
      const float low = ranges.low[size_t(i)], high = ranges.high[size_t(i)];
      const float* values = w.values.data() + i * grid.group;
      double least = std::numeric_limits<double>::infinity();
      for (int clip = 0; clip <= kClipSteps; clip++) {
        const float share = 1 - 0.05f * float(clip);
        const Step step = step_for(low * share, high * share, grid);
        for (size_t c = 0; c < d.size(); c++) d[c] = step.decode(step.encode(values[c], grid.bits)) - values[c];
        const double error = group_error(d, input.hessian(), i % groups * grid.group, line);
        if (error < least)
          least = error, ranges.low[size_t(i)] = low * share, ranges.high[size_t(i)] = high * share;
      }
    }
  });
  return ranges;
}

}  // namespace sluice::quantize
