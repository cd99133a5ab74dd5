// Made-up 4-bit weights for tests, in the layout and as the numbers that they stand for.
#pragma once

#include <cmath>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tensor/cuda/linear/int4_pack.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda::test {

struct Int4Matrix {
  // zeros: integers, as AWQ has them; any numbers, as Q4_K has them; or none.
  enum class Zeros : uint8_t { integer, real, none };

  Int4Layout layout;
  std::vector<float> values;  // [rows, cols]: scale * q + min in float32
  std::vector<std::byte> packed;

  Int4Matrix(int64_t rows, int64_t cols, int group, Zeros zeros, uint32_t seed)
      : layout{rows, cols, int4_group(group, cols)}, values(size_t(rows * cols)), packed(layout.bytes()) {
    std::mt19937 rng(seed);
    DecodedRow row;
    for (int64_t r = 0; r < rows; ++r) {
      make_row(rng, group, zeros, row);
      for (int64_t c = 0; c < cols; ++c)
        values[size_t(r * cols + c)] =
            row.scale[size_t(c / group)] * float(row.q[size_t(c)]) + row.min[size_t(c / group)];
      EXPECT_TRUE(pack_int4_row(layout, row, group, int(r % kPanelRows),
                                packed.data() + r / kPanelRows * layout.panel_bytes()));
    }
  }

 private:
  void make_row(std::mt19937& rng, int group, Zeros zeros, DecodedRow& row) const {
    const auto groups = size_t(layout.cols / group);
    row.q.resize(size_t(layout.cols));
    row.scale.resize(groups), row.min.resize(groups);
    for (size_t i = 0; i < row.q.size(); i += 8) {
      uint32_t bits = rng();
      for (size_t e = i; e < i + 8; ++e, bits >>= 4) row.q[e] = int8_t(bits & 15);
    }
    for (size_t g = 0; g < groups; ++g) {
      // Scales that f16 holds, as checkpoints do.
      row.scale[g] = f16_to_f32(f32_to_f16(0.002f * (1 + float(rng() % 1024) / 1024)));
      const float zero = zeros == Zeros::none      ? 0
                         : zeros == Zeros::integer ? float(rng() % 17)
                                                   : float(rng() % 4096) / 256;
      row.min[g] = -zero * row.scale[g];
    }
  }
};

struct Int4Case {
  int64_t m, n, k;
  int group = 128;
  Int4Matrix::Zeros zeros = Int4Matrix::Zeros::integer;
  bool bias = false, f32 = false;
  int64_t x_gap = 0;
};

inline std::string text(const Int4Case& c) {
  std::ostringstream out;
  out << "m " << c.m << " n " << c.n << " k " << c.k << " group " << c.group << " zeros " << int(c.zeros)
      << " bias " << c.bias << " f32 " << c.f32 << " gap " << c.x_gap;
  return out.str();
}

class Int4Product {
 public:
  explicit Int4Product(const Int4Case& c)
      : c_(c),
        w_(c.n, c.k, c.group, c.zeros, uint32_t(c.n + c.k)),
        x_(random_bf16(size_t(c.m * (c.k + c.x_gap)), 1 + uint32_t(c.m))),
        bias_(random_bf16(size_t(c.n), 3)),
        device_w_(upload(w_.packed)),
        device_x_(upload_bf16(x_)),
        device_bias_(upload(bias_)) {
    weight_.rows = c.n, weight_.cols = c.k;
  }

  // The output, [m, n + 8] with what lies between the rows; NaN where nothing was written.
  template <typename F>
  std::vector<float> run(const F& enqueue, int times = 1) const {
    const int64_t stride = c_.n + 8;
    const DType dtype = c_.f32 ? DType::f32 : DType::bf16;
    const DeviceBytes out(size_t(c_.m * stride) * dtype_size(dtype));
    const LinearArgs args{bf16_tensor(device_x_.data(), c_.m, c_.k, c_.k + c_.x_gap), weight_,
                          c_.bias ? device_bias_.as<float>() : nullptr,
                          Tensor{out.data(), dtype, c_.m, c_.n, stride}};
    for (int i = 0; i < times; ++i) enqueue(args, device_w_.data(), w_.layout);
    if (c_.f32) return download<float>(out.data(), size_t(c_.m * stride));
    return download_bf16(out.data(), size_t(c_.m * stride));
  }

  // In float64; of many columns the ends and some between.
  void expect_right(const std::vector<float>& got, double most) const {
    double difference = 0, size = 0;
    for (int64_t row = 0; row < c_.m; ++row) {
      for (int64_t i = 0; i < 8; ++i) ASSERT_TRUE(std::isnan(got[size_t(row * (c_.n + 8) + c_.n + i)]));
      for (int64_t column = 0; column < c_.n; ++column) {
        const float value = got[size_t(row * (c_.n + 8) + column)];
        ASSERT_FALSE(std::isnan(value)) << row << ", " << column;
        if (column >= 80 && column < c_.n - 80 && column % 13) continue;
        if (row >= 16 && row < c_.m - 16 && row % 29) continue;
        double want = c_.bias ? bias_[size_t(column)] : 0;
        for (int64_t i = 0; i < c_.k; ++i)
          want +=
              double(x_[size_t(row * (c_.k + c_.x_gap) + i)]) * double(w_.values[size_t(column * c_.k + i)]);
        difference += (value - want) * (value - want);
        size += want * want;
      }
    }
    EXPECT_LT(std::sqrt(difference / size), most);
  }

 private:
  const Int4Case c_;
  const Int4Matrix w_;
  const std::vector<float> x_, bias_;
  const DeviceBytes device_w_, device_x_, device_bias_;
  Weight weight_;
};

// Relative errors. Rounding of the result, or of the weights, to bf16: 1.7e-3. Of zeros that are no integers,
// to 11 bits: 3.5e-4.
inline double int4_tolerance(const Int4Case& c) {
  if (!c.f32) return 2.5e-3;
  return c.zeros == Int4Matrix::Zeros::real ? 7e-4 : 3e-5;
}

// What `enqueue` computes is right, and twice the same.
template <typename F>
void expect_int4_product(const Int4Case& c, double most, const F& enqueue) {
  const Int4Product product(c);
  const std::vector<float> first = product.run(enqueue), second = product.run(enqueue, 3);
  product.expect_right(first, most);
  for (size_t i = 0; i < first.size(); ++i)
    ASSERT_TRUE(first[i] == second[i] || std::isnan(first[i])) << "not the same twice, at " << i;
}

}  // namespace sluice::cuda::test
