#include "quantize/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <optional>

namespace sluice::quantize {
namespace {

// Bins of |x|, 32 to a power of two, from 2^-16 to 2^16: the upper bits of the number itself.
constexpr uint32_t kBins = 1024, kBinShift = 23 - 5, kFirstBin = (127 - 16) << 5;

size_t bin_of(float size) {
  const uint32_t upper = std::bit_cast<uint32_t>(size) >> kBinShift;
  return std::clamp(upper, kFirstBin, kFirstBin + kBins - 1) - kFirstBin;
}

constexpr int kGroup = 128;

// What stands behind the sign, and is a number to the end.
std::optional<double> number_behind(const std::string& text, char sign) {
  const size_t at = text.find(sign);
  if (at == std::string::npos) return {};
  const char *begin = text.data() + at + 1, *stop = text.data() + text.size();
  double number = 0;
  const auto [end, error] = std::from_chars(begin, stop, number, std::chars_format::fixed);
  return error == std::errc() && end == stop && std::isfinite(number) ? std::optional(number) : std::nullopt;
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

std::string Observer::unit() const {
  return together == 1 ? "channel" : together == 0 ? "tensor" : fmt::format("group:{}", together);
}

Result<Observer> parse_observer(const std::string& text, const std::string& unit) {
  Observer out;
  if (text == "moving-average") {
    out.kind = Observer::Kind::moving_average;
  } else if (text == "percentile" || text.starts_with("percentile:")) {
    out.kind = Observer::Kind::percentile;
    if (text != "percentile") out.percentile = number_behind(text, ':').value_or(0);
  }
  if ((text != "minmax" && out.kind == Observer::Kind::minmax) || out.percentile < 50 || out.percentile > 100)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("expected minmax, moving-average or percentile[:50 - 100], got '{}'", text),
                 "observer"};
  if (unit == "tensor") {
    out.together = 0;
  } else if (unit != "channel") {
    const double columns = unit == "group" ? kGroup : number_behind(unit, ':').value_or(0);
    if (!(unit == "group" || unit.starts_with("group:")) || columns < 2 || columns > 65536 ||
        columns != std::floor(columns))
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("expected channel, group[:2 - 65536] or tensor, got '{}'", unit), "observe-per"};
    out.together = int64_t(columns);
  }
  return out;
}

Statistics::Statistics(int64_t columns, const Observer& observer, bool hessian)
    : observer_(observer),
      together_(observer.together > 0 ? observer.together : columns),
      sum_(size_t(columns)),
      range_(size_t((columns + together_ - 1) / together_)),
      keeps_hessian_(hessian) {
  if (hessian) hessian_ = Matrix(columns, columns);
  if (observer.kind == Observer::Kind::percentile) counts_.resize(range_.size() * kBins);
}

void Statistics::add(const Tensor& x, Products& products) {
  CHECK(x.dtype == DType::f32 && x.cols == int64_t(sum_.size()));
  const int64_t multiple = products.column_multiple(), width = (x.rows + multiple - 1) / multiple * multiple;
  Matrix columns(x.cols, width);  // what is behind x's rows stays 0, and adds nothing
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t c = 0; c < x.cols; c++) columns.values[size_t(c * width + r)] = x.row<float>(r)[c];
  rows_ += x.rows;
  observe(columns, x.rows);
  if (!keeps_hessian_) return;
  products.multiply(columns, products.pack(columns), product_);
  for (size_t i = 0; i < hessian_.values.size(); i++) hessian_.values[i] += product_.values[i];
}

void Statistics::observe(const Matrix& columns, int64_t rows) {
  std::vector<float> sizes(static_cast<size_t>(rows)), largest(range_.size());
  for (int64_t c = 0; c < columns.rows; c++) {
    const auto unit = size_t(c / together_);
    for (size_t i = 0; i < sizes.size(); i++) sizes[i] = std::fabs(columns.row(c)[i]);
    for (const float s : sizes) sum_[size_t(c)] += double(s);
    largest[unit] = std::max(largest[unit], *std::max_element(sizes.begin(), sizes.end()));
    if (!counts_.empty())
      for (const float s : sizes) ++counts_[unit * kBins + bin_of(s)];
  }
  for (size_t u = 0; u < range_.size(); u++) {
    if (observer_.kind != Observer::Kind::moving_average || samples_ == 0)
      range_[u] = std::max(range_[u], largest[u]);
    else
      range_[u] = float(observer_.momentum * double(range_[u]) + (1 - observer_.momentum) * double(largest[u]));
  }
  ++samples_;
}

std::vector<float> Statistics::mean() const {
  std::vector<float> out;
  for (const double s : sum_) out.push_back(float(s / double(std::max<int64_t>(rows_, 1))));
  return out;
}

// The end of the bin in which that share of the unit's numbers is reached, but no more than the largest.
float Statistics::percentile(int64_t unit) const {
  const uint64_t* counts = counts_.data() + unit * kBins;
  const int64_t channels = std::min(together_, int64_t(sum_.size()) - unit * together_);
  const auto wanted = uint64_t(std::ceil(observer_.percentile / 100 * double(rows_ * channels)));
  size_t bin = 0;
  for (uint64_t seen = counts[0]; seen < wanted && bin + 1 < kBins; seen += counts[bin]) ++bin;
  return std::min(bin + 1 < kBins ? bin_end(bin) : range_[size_t(unit)], range_[size_t(unit)]);
}

void Statistics::finish() {
  if (!counts_.empty())
    for (int64_t u = 0; u < int64_t(range_.size()); u++) range_[size_t(u)] = percentile(u);
  std::vector<float> of_channels(sum_.size());
  for (size_t c = 0; c < of_channels.size(); c++) of_channels[c] = range_[c / size_t(together_)];
  range_ = std::move(of_channels);
  for (float& h : hessian_.values) h /= float(std::max<int64_t>(rows_, 1));
}

void Statistics::divide(const std::vector<float>& factors) {
  for (int64_t i = 0; i < hessian_.rows; i++)
    for (size_t j = 0; j < factors.size(); j++) hessian_.row(i)[j] /= factors[size_t(i)] * factors[j];
}

}  // namespace sluice::quantize
