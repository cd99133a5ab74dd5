#include "quantize/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace sluice::quantize {
namespace {

// Bins of |x|, 32 to a power of two, from 2^-16 to 2^16: the upper bits of the number itself.
constexpr uint32_t kBins = 1024, kBinShift = 23 - 5, kFirstBin = (127 - 16) << 5;

size_t bin_of(float size) {
  const uint32_t upper = std::bit_cast<uint32_t>(size) >> kBinShift;
  return std::clamp(upper, kFirstBin, kFirstBin + kBins - 1) - kFirstBin;
}

float bin_end(size_t bin) { return std::bit_cast<float>((uint32_t(bin) + kFirstBin + 1) << kBinShift); }

}  // namespace

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
  if (observer.kind == Observer::Kind::percentile) counts_.resize(size_t(columns) * kBins);
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
    const float largest = *std::max_element(sizes.begin(), sizes.end());
    if (!counts_.empty())
      for (const float s : sizes) ++counts_[size_t(c) * kBins + bin_of(s)];
    if (observer_.kind != Observer::Kind::moving_average || samples_ == 0)
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

// The end of the bin in which that share of the channel's numbers is reached, but no more than the largest.
float Statistics::percentile(int64_t channel) const {
  const uint32_t* counts = counts_.data() + channel * kBins;
  const auto wanted = int64_t(std::ceil(observer_.percentile / 100 * double(rows_)));
  size_t bin = 0;
  for (int64_t seen = counts[0]; seen < wanted && bin + 1 < kBins; seen += counts[bin]) ++bin;
  return std::min(bin + 1 < kBins ? bin_end(bin) : range_[size_t(channel)], range_[size_t(channel)]);
}

void Statistics::finish() {
  if (!counts_.empty())
    for (int64_t c = 0; c < int64_t(range_.size()); c++) range_[size_t(c)] = percentile(c);
  for (float& h : hessian_.values) h /= float(std::max<int64_t>(rows_, 1));
}

void Statistics::divide(const std::vector<float>& factors) {
  for (int64_t i = 0; i < hessian_.rows; i++)
    for (size_t j = 0; j < factors.size(); j++) hessian_.row(i)[j] /= factors[size_t(i)] * factors[j];
}

}  // namespace sluice::quantize
