// What each method is for, on matrices made to show it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quantize/awq.h"
#include "quantize/gptq.h"
#include "quantize/smooth.h"

namespace sluice::quantize {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;

constexpr int kRows = 256;

class Methods : public testing::Test {
 protected:
  Matrix normal(int64_t rows, int64_t cols, float deviation = 1) {
    Matrix m(rows, cols);
    std::normal_distribution<float> draw(0, deviation);
    for (float& v : m.values) v = draw(random_);
    return m;
  }
  Statistics watch(const Matrix& x, const Observer& observer = {}) {
    Statistics s(x.cols, observer, true);
    s.add({const_cast<float*>(x.values.data()), DType::f32, x.rows, x.cols, x.cols}, products_);
    s.finish();
    return s;
  }
  double error(const Matrix& w, const Matrix& other, const Statistics& s) {
    return output_error(w, other, products_.pack(s.hessian()), products_);
  }

  std::mt19937 random_{3};
  std::unique_ptr<Backend> backend_ = make_ref_backend();
  Products products_ = *Products::make(*backend_, kRows, 512);
};

TEST_F(Methods, OutputErrorIsTheMeanSquareOfTheDifferenceOfOutputs) {
  const Matrix x = normal(kRows, 64), w = normal(8, 64), other = normal(8, 64);
  double direct = 0;
  for (int64_t t = 0; t < x.rows; t++)
    for (int64_t r = 0; r < w.rows; r++) {
      double sum = 0;
      for (size_t c = 0; c < 64; c++) sum += double(x.row(t)[c]) * double(w.row(r)[c] - other.row(r)[c]);
      direct += sum * sum / double(x.rows);
    }
  EXPECT_NEAR(error(w, other, watch(x)) / direct, 1, 1e-4);
}

TEST_F(Methods, AwqBeatsRoundingWhereAFewChannelsCarryLargeActivations) {
  Matrix x = normal(kRows, 128);
  for (int64_t t = 0; t < x.rows; t++)
    for (const size_t c : {5u, 77u, 100u}) x.row(t)[c] *= 40;
  const Matrix w = normal(64, 128, 0.05f);
  const Grid grid{4, 64};
  const Statistics s = watch(x);
  const Matrix* weights[] = {&w};
  const std::vector<float> factors = search_scales(weights, s, grid, {}, products_);
  EXPECT_GT(factors[5], 1.5 * factors[6]) << "channels with large activations get finer steps";
  Matrix scaled = w;
  for (int64_t r = 0; r < w.rows; r++)
    for (size_t c = 0; c < 128; c++) scaled.row(r)[c] *= factors[c];
  Statistics divided = s;
  divided.divide(factors);
  Matrix awq = dequantize(round_to_nearest(scaled, search_clips(scaled, divided, grid, 2), grid));
  for (int64_t r = 0; r < w.rows; r++)
    for (size_t c = 0; c < 128; c++) awq.row(r)[c] /= factors[c];
  EXPECT_LT(error(w, awq, s), 0.5 * error(w, dequantize(round_to_nearest(w, grid)), s));
}

TEST_F(Methods, ClippingNeverMakesAGroupWorseAndGivesUpAnOutlierThatNothingReads) {
  Matrix x = normal(kRows, 64), w = normal(16, 64, 0.02f);
  for (int64_t t = 0; t < x.rows; t++) x.row(t)[9] = 0;
  for (int64_t r = 0; r < w.rows; r++) w.row(r)[9] = 1;  // stretches every grid, for an input that is always 0
  const Grid grid{4, 32};
  const Statistics s = watch(x);
  const Ranges whole = ranges_of(w, 32), clipped = search_clips(w, s, grid, 3);
  EXPECT_LE(clipped.high[0], 0.51f * whole.high[0]);
  EXPECT_LT(error(w, dequantize(round_to_nearest(w, clipped, grid)), s),
            0.6 * error(w, dequantize(round_to_nearest(w, grid)), s));
  EXPECT_EQ(search_clips(w, s, grid, 1).high, clipped.high) << "threads change nothing";
}

TEST_F(Methods, ColumnsThatShareAHeadShareAFactor) {
  Matrix x = normal(kRows, 64);
  for (int64_t t = 0; t < x.rows; t++) x.row(t)[3] *= 30;
  const Matrix w = normal(32, 64, 0.05f);
  const Matrix* weights[] = {&w};
  // Two value heads of 16 columns, each read by two query heads.
  const std::vector<float> f = search_scales(weights, watch(x), {4, 32}, {16, 2}, products_);
  for (size_t c = 0; c < 16; c++) {
    EXPECT_EQ(f[c], f[c + 16]);
    EXPECT_EQ(f[c + 32], f[c + 48]);
  }
}

TEST_F(Methods, GptqReconstructsOutputsBetterThanRounding) {
  // Inputs that depend on each other, as activations do: errors of one column can be made good in others.
  const Matrix base = normal(kRows, 16);
  Matrix x = normal(kRows, 128, 0.1f);
  for (int64_t t = 0; t < x.rows; t++)
    for (size_t c = 0; c < 128; c++) x.row(t)[c] += base.row(t)[c % 16];
  const Matrix w = normal(40, 128, 0.05f);
  const Statistics s = watch(x);
  for (const int bits : {4, 8}) {
    const Grid grid{bits, 64, false, 1};
    const IntegerMatrix m = quantize_gptq(w, compensation_of(s.hessian(), 0.01, 2), grid, 2);
    EXPECT_LT(error(w, dequantize(m), s), 0.7 * error(w, dequantize(round_to_nearest(w, grid)), s)) << bits;
    EXPECT_THAT(m.zero, Each(Ge(1)));
    EXPECT_EQ(m.scale, round_to_nearest(w, grid).scale)
        << "groups are as they lie, whatever order columns have";
    EXPECT_EQ(quantize_gptq(w, compensation_of(s.hessian(), 0.01, 1), grid, 1).q, m.q)
        << "threads change nothing";
  }
}

TEST_F(Methods, CompensatedFloatsReconstructOutputsBetterThanTheNearest) {
  const Matrix base = normal(kRows, 16);
  Matrix x = normal(kRows, 128, 0.1f);
  for (int64_t t = 0; t < x.rows; t++)
    for (size_t c = 0; c < 128; c++) x.row(t)[c] += base.row(t)[c % 16];
  const Matrix w = normal(40, 128, 0.05f);
  const Statistics s = watch(x);
  for (const int64_t block : {0, 128}) {
    const FloatMatrix m = compensate_float8(w, compensation_of(s.hessian(), 0.01, 2), block, 2);
    EXPECT_LT(error(w, dequantize(m), s), 0.7 * error(w, dequantize(to_float8(w, block)), s)) << block;
    EXPECT_EQ(m.scale, to_float8(w, block).scale);
  }
}

TEST_F(Methods, ColumnsWhoseInputCarriesMostAreRoundedFirst) {
  Matrix x = normal(kRows, 8);
  for (int64_t t = 0; t < x.rows; t++) x.row(t)[5] *= 20, x.row(t)[2] *= 5, x.row(t)[7] = 0;
  const Compensation by = compensation_of(watch(x).hessian(), 0.01, 1);
  EXPECT_EQ(by.order[0], 5);
  EXPECT_EQ(by.order[1], 2);
  EXPECT_EQ(by.order[7], 7) << "nothing reads it";
  // No other column's error has reached the first.
  const Matrix w = normal(6, 8);
  const Grid grid{4, 8, false, 1};
  const IntegerMatrix made = quantize_gptq(w, by, grid, 1), nearest = round_to_nearest(w, grid);
  for (size_t r = 0; r < 6; r++) EXPECT_EQ(made.q[r * 8 + 5], nearest.q[r * 8 + 5]);
}

TEST_F(Methods, TheInverseFactorGivesTheInverseBack) {
  for (const int64_t n : {24, 64, 150}) {  // within a panel of columns, just one, several
    const Matrix h = watch(normal(kRows, n)).hessian(), u = inverse_factor(h, 1e-6, 2);
    EXPECT_EQ(inverse_factor(h, 1e-6, 1).values, u.values) << "threads change nothing";
    Matrix product(n, n);  // U H
    for (int64_t k = 0; k < n; k++)
      for (int64_t l = k; l < n; l++)
        for (size_t j = 0; j < size_t(n); j++) product.row(k)[j] += u.row(k)[size_t(l)] * h.row(l)[j];
    for (size_t i = 0; i < size_t(n); i++)
      for (size_t j = 0; j < size_t(n); j++) {
        double sum = 0;  // (Uᵀ U H)[i][j]
        for (int64_t k = 0; k <= int64_t(i); k++) sum += double(u.row(k)[i]) * double(product.row(k)[j]);
        EXPECT_NEAR(sum, i == j, 2e-3) << n << ": " << i << ", " << j;
      }
  }
}

TEST_F(Methods, AHessianOfTooFewRowsIsDampedUntilItCanBeInverted) {
  Matrix x(1, 32);
  x.row(0)[4] = 100;  // one row, one channel: rank 1, and 31 channels without any input
  const Matrix u = inverse_factor(watch(x).hessian(), 0.01, 1);
  for (const float v : u.values) EXPECT_TRUE(std::isfinite(v));
}

TEST_F(Methods, SmoothingEvensOutActivationsAndChangesNoProduct) {
  const Matrix w = normal(16, 32, 0.1f);
  std::vector<float> range(32, 1);
  range[7] = 100, range[8] = 0;
  const Matrix* weights[] = {&w};
  const std::vector<float> f = smoothing_scales(weights, range, 0.5);
  float least = 1e9f, most = 0;
  for (size_t c = 0; c < 32; c++) {
    if (c == 8) continue;
    least = std::min(least, range[c] / f[c]), most = std::max(most, range[c] / f[c]);
  }
  EXPECT_LT(most / least, 20) << "100 before";
  EXPECT_EQ(f[8], 1) << "a channel without input stays";
}

TEST(GridOf, CoversTheRangeAndZeroWithScalesThatHalfPrecisionHolds) {
  const Step step = step_for(0.2f, 1, {4});
  EXPECT_EQ(step.zero, 0);
  EXPECT_NEAR(step.scale, 1.0f / 15, 1e-4);
  EXPECT_EQ(step_for(0.2f, 1, {4, 128, false, 1}).zero, 1) << "where a layout stores zero points less one";
  const Step symmetric = step_for(-2, 1, {8, 128, true});
  EXPECT_EQ(symmetric.zero, 128);
  EXPECT_EQ(symmetric.encode(-2, 8), 1);
  const Step nothing = step_for(0, 0, {4});
  EXPECT_GT(nothing.scale, 0);
  EXPECT_EQ(nothing.decode(nothing.encode(0, 4)), 0);
}

TEST(GridOf, EveryWeightIsWithinHalfAStep) {
  Matrix w(4, 64);
  std::mt19937 random(1);
  for (float& v : w.values) v = std::normal_distribution<float>(0, 1)(random);
  const IntegerMatrix m = round_to_nearest(w, {4, 32});
  const Matrix back = dequantize(m);
  for (size_t i = 0; i < w.values.size(); i++)
    EXPECT_LE(std::fabs(back.values[i] - w.values[i]), 1.02f * m.scale[i / 32]);  // zero points are rounded too
}

TEST(Float8, KeepsFourSignificantBitsOfEachBlock) {
  Matrix w(130, 140);  // blocks that are not whole
  std::mt19937 random(1);
  for (float& v : w.values) v = std::normal_distribution<float>(0, 1)(random);
  for (const int64_t block : {0, 128}) {
    const FloatMatrix m = to_float8(w, block);
    EXPECT_EQ(m.scale.size(), block ? 4u : 130u);
    const Matrix back = dequantize(m);
    for (size_t i = 0; i < w.values.size(); i++)
      ASSERT_LE(std::fabs(back.values[i] - w.values[i]), std::fabs(w.values[i]) / 16 + 1e-4f);
  }
}

TEST_F(Methods, ObserversSeeARangeEachInTheirWay) {
  const auto range = [&](const char* observer) {
    Statistics s(1, *parse_observer(observer, "channel"), false);
    for (const float outlier : {4.0f, 100.0f}) {
      Matrix x(100, 1);
      for (size_t i = 0; i < 100; i++) x.values[i] = float(i) / 100;
      x.values[0] = -outlier;
      s.add({x.values.data(), DType::f32, 100, 1, 1}, products_);
    }
    s.finish();
    return s.range();
  };
  EXPECT_THAT(range("minmax"), ElementsAre(100));
  EXPECT_THAT(range("moving-average"), ElementsAre(testing::FloatNear(0.9f * 4 + 0.1f * 100, 1e-4f)));
  EXPECT_THAT(range("percentile:99"), ElementsAre(testing::FloatNear(0.99f, 0.99f / 32)));
  // Over all samples: one number of 200 is above it, though that is the largest of its sample.
  EXPECT_THAT(range("percentile:99.5"), ElementsAre(testing::FloatNear(4, 4.0f / 32)));
}

TEST_F(Methods, ChannelsMayHaveARangeTogether) {
  // Channel c of five ranges to c + 1, but for one number: 100 in the last channel of the first sample.
  const auto range = [&](const char* observer, const char* unit) {
    Statistics s(5, *parse_observer(observer, unit), false);
    for (const float outlier : {100.0f, 5.0f}) {
      Matrix x(100, 5);
      for (int64_t r = 0; r < 100; r++)
        for (int64_t c = 0; c < 5; c++) x.row(r)[size_t(c)] = float(c + 1) * float(r + 1) / 100;
      x.row(3)[4] = -outlier;
      s.add({x.values.data(), DType::f32, 100, 5, 5}, products_);
    }
    s.finish();
    return s.range();
  };
  EXPECT_THAT(range("minmax", "channel"), ElementsAre(1, 2, 3, 4, 100));
  EXPECT_THAT(range("minmax", "group:2"), ElementsAre(2, 2, 4, 4, 100)) << "the last group is shorter";
  EXPECT_THAT(range("minmax", "tensor"), ElementsAre(100, 100, 100, 100, 100));
  EXPECT_THAT(range("moving-average", "group:2"), ElementsAre(2, 2, 4, 4, testing::FloatNear(90.5f, 1e-4f)));
  EXPECT_THAT(range("percentile:50", "tensor"), testing::Each(testing::FloatNear(1.15f, 0.1f)))
      << "half of all thousand numbers";
  EXPECT_THAT(range("percentile:99.5", "group:4")[4], testing::FloatNear(5, 5.0f / 32))
      << "of 200, not of 1000";
}

TEST(ObserverOf, NamesWhatItWasMadeFrom) {
  for (const char* text : {"minmax", "moving-average", "percentile:99.5"})
    for (const char* unit : {"channel", "group:64", "tensor"}) {
      const auto observer = parse_observer(text, unit);
      ASSERT_TRUE(observer.ok()) << text << unit;
      EXPECT_EQ(observer->name(), text);
      EXPECT_EQ(observer->unit(), unit);
    }
  EXPECT_EQ(parse_observer("minmax", "group")->unit(), "group:128");
  for (const char* text :
       {"median", "percentile:200", "percentile:", "percentile:9x", "percentile:nan", "percentile:9e1", ""})
    EXPECT_EQ(parse_observer(text, "channel").error().field, "observer") << text;
  for (const char* unit :
       {"row", "group:1", "group:", "group:2.5", "group:64k", "group:1e3", "group:inf", "groups:64", ""})
    EXPECT_EQ(parse_observer("minmax", unit).error().field, "observe-per") << unit;
}

}  // namespace
}  // namespace sluice::quantize
