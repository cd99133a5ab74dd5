// What calibration keeps of the inputs of a linear layer.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "quantize/products.h"

namespace sluice::quantize {

// How the range of activations is found over the samples, and which channels have one together.
struct Observer {
  enum class Kind : uint8_t { minmax, moving_average, percentile } kind = Kind::minmax;
  double percentile = 99.9;  // of |x| over all samples, to within 1/32
  double momentum = 0.9;     // of the moving average: what stays of it with each sample
  int64_t together = 1;      // channels, one after the other; 0: all of an input

  std::string name() const;  // "percentile:99.9"
  std::string unit() const;  // "channel", "group:128", "tensor"
};

// "minmax", "moving-average" or "percentile[:P]"; of each "channel", "group[:N]" or "tensor". Error: what is
// expected.
Result<Observer> parse_observer(const std::string& text, const std::string& unit);

class Statistics {
 public:
  // `hessian`: the sum of xᵀx is wanted too, K x K numbers.
  Statistics(int64_t columns, const Observer& observer, bool hessian);

  // A sample's rows [T, K], float32 in host memory.
  void add(const Tensor& x, Products& products);

  int64_t rows() const { return rows_; }
  // [K] mean of |x|; range of |x| as the observer has it, after finish(): channels that have one together have
  // the same.
  std::vector<float> mean() const;
  const std::vector<float>& range() const { return range_; }
  const Matrix& hessian() const { return hessian_; }  // [K, K] sum of xᵀx / rows, after finish()
  void finish();
  // What finish() left, as if channel c of the input had been divided by factors[c].
  void divide(const std::vector<float>& factors);

 private:
  void observe(const Matrix& columns, int64_t rows);
  float percentile(int64_t unit) const;

  const Observer observer_;
  const int64_t together_;  // channels to a unit
  int64_t rows_ = 0;
  int samples_ = 0;
  std::vector<double> sum_;
  std::vector<float> range_;      // [units]; [K] after finish()
  std::vector<uint64_t> counts_;  // [units, kBins] of a percentile: how many |x| are in each bin
  Matrix hessian_, product_;
  bool keeps_hessian_;
};

}  // namespace sluice::quantize
