#include "quantize/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace sluice::quantize {

std::string Observer::name() const {
  switch (kind) {
    case Kind::minmax:
      return "minmax";
    case Kind::moving_average:
      return "moving-average";
    case Kind::percentile:
      return fmt::format("percentile:{}", percentile);
  }
  return "?";
}

Result<Observer> parse_observer(const std::string& text) {
  if (text == "minmax") return Observer{Observer::Kind::minmax};
  if (text == "moving-average") return Observer{Observer::Kind::moving_average};
  if (text == "percentile") return Observer{Observer::Kind::percentile};
  if (text.starts_with("percentile:")) {
    const char* begin = text.c_str() + 11;
    char* end = nullptr;
    const double p = std::strtod(begin, &end);
    if (end != begin && *end == 0 && p >= 50 && p <= 100) return Observer{Observer::Kind::percentile, p};
  }
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("expected minmax, moving-average or percentile[:50 - 100], got '{}'", text),
               "observer"};
}

Statistics::Statistics(int64_t columns, const Observer& observer, bool hessian)
    : observer_(observer), sum_(size_t(columns)), range_(size_t(columns)), keeps_hessian_(hessian) {
  if (hessian) hessian_ = Matrix(columns, columns);
}

void Statistics::add(const Tensor& x, Products& products) {
  CHECK(x.dtype == DType::f32 && x.cols == int64_t(sum_.size()));
  Matrix columns(x.cols, x.rows);
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t c = 0; c < x.cols; c++) columns.values[size_t(c * x.rows + r)] = x.row<float>(r)[c];
  rows_ += x.rows;
  observe(columns);
  if (!keeps_hessian_) return;
  products.multiply(columns, products.pack(columns), product_);
  for (size_t i = 0; i < hessian_.values.size(); i++) hessian_.values[i] += product_.values[i];
}

void Statistics::observe(const Matrix& columns) {
  std::vector<float> sizes(size_t(columns.cols));
  for (int64_t c = 0; c < columns.rows; c++) {
    for (size_t i = 0; i < sizes.size(); i++) sizes[i] = std::fabs(columns.row(c)[i]);
    for (const float s : sizes) sum_[size_t(c)] += double(s);
    float& range = range_[size_t(c)];
    if (observer_.kind == Observer::Kind::percentile) {
      const auto place = int64_t(std::ceil(observer_.percentile / 100 * double(sizes.size()))) - 1;
      const auto at = sizes.begin() + std::clamp<int64_t>(place, 0, int64_t(sizes.size()) - 1);
      std::nth_element(sizes.begin(), at, sizes.end());
      range = std::max(range, *at);
      continue;
    }
    const float largest = *std::max_element(sizes.begin(), sizes.end());
    if (observer_.kind == Observer::Kind::minmax || samples_ == 0)
      range = std::max(range, largest);
    else
      range = float(observer_.momentum * double(range) + (1 - observer_.momentum) * double(largest));
  }
  ++samples_;
}

std::vector<float> Statistics::mean() const {
  std::vector<float> out;
  for (const double s : sum_) out.push_back(float(s / double(std::max<int64_t>(rows_, 1))));
  return out;
}

void Statistics::finish() {
  for (float& h : hessian_.values) h /= float(std::max<int64_t>(rows_, 1));
}

void Statistics::divide(const std::vector<float>& factors) {
  for (int64_t i = 0; i < hessian_.rows; i++)
    for (size_t j = 0; j < factors.size(); j++) hessian_.row(i)[j] /= factors[size_t(i)] * factors[j];
}

}  // namespace sluice::quantize
