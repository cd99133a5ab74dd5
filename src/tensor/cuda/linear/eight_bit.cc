#include "tensor/cuda/linear/eight_bit.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/linear/finish.h"
#include "tensor/cuda/linear/stream_gemm_8bit.h"

namespace sluice::cuda {
namespace {

// cuBLASLt's products with scales of blocks want a multiple of four rows. Those behind x's are whatever the
// workspace has; their results go to rows of `out` that LinearArgs leaves to a backend.
int64_t padded(int64_t rows, Factors factors) {
  constexpr int64_t kStep = 4;
  static_assert(kRowsLeftToBackend % kStep == 0);
  return factors == Factors::fp8_blocks ? (rows + kStep - 1) / kStep * kStep : rows;
}

}  // namespace

void EightBitLinear::prepare(const Weight& w) {
  const Factors factors = factors_of(w.parts[0].format);
  if (factors == Factors::bf16) {
    bf16_columns_.insert(w.cols);
    return;
  }
  wanted_.emplace(w.cols, factors);
  most_columns_ = std::max(most_columns_, w.cols);
  if (factors == Factors::int8 || (factors == Factors::fp8 && w.cols >= w.rows))
    most_sums_ = std::max(most_sums_, w.rows);
}

Status EightBitLinear::reserve(Backend& backend, int64_t max_rows) {
  if (wanted_.empty()) return {};
  max_rows_ = max_rows;
  max_rows = padded(max_rows, Factors::fp8_blocks);
  x_ = backend.alloc(size_t(max_rows * most_columns_));
  scales_ = backend.alloc(size_t(max_rows * ((most_columns_ + kScaleBlock - 1) / kScaleBlock)) * sizeof(float));
  if (most_sums_ > 0)
    sums_ = backend.alloc(size_t(std::min(max_rows, kMostUnscaledRows) * most_sums_) * sizeof(int32_t));
  if (x_.data() && scales_.data() && (most_sums_ == 0 || sums_.data())) return {};
  return Error{ErrorCode::kResourceExhausted, "no memory left on the card for activations of eight bits"};
}

QuantizedRows EightBitLinear::place_for(const Tensor& x, Factors factors) const {
  CHECK(x.rows <= max_rows_ && x.cols <= most_columns_, "more rows than were reserved");
  return {x_.data(), scales_.as<float>(), factors, x.rows, x.cols, padded(x.rows, factors)};
}

bool EightBitLinear::only_eight_bits(int64_t cols) const { return !bf16_columns_.contains(cols); }

const QuantizedRows* EightBitLinear::copy_wanted(const Tensor& out) {
  written(out);
  const auto wanted = wanted_.find(out.cols);
  if (wanted == wanted_.end() || out.rows > max_rows_) return nullptr;
  held_ = out;
  held_as_ = place_for(out, wanted->second);
  return &held_as_;
}

void EightBitLinear::written(const Tensor& out) {
  const auto end = [](const Tensor& t) {
    return static_cast<const std::byte*>(t.data) + size_t(t.rows * t.stride) * dtype_size(t.dtype);
  };
  if (held_.data && held_.data < end(out) && out.data < end(held_)) held_ = {};
}

void EightBitLinear::run(const LinearArgs& a) {
  const Factors factors = factors_of(a.w.parts[0].format);
  const bool held = held_.data == a.x.data && held_.rows == a.x.rows && held_.cols == a.x.cols &&
                    held_.stride == a.x.stride && held_as_.factors == factors;
  if (!held) {
    held_ = a.x;
    held_as_ = place_for(a.x, factors);
    quantize_rows(context_, a.x, held_as_);
  }
  const QuantizedRows x = held_as_;
  const QuantizedWeight w = quantized_weight(a.w);
  written(a.out);
  const LinearChoice choice =
      choose_linear({a.x.rows, w.rows, w.cols, a.out.dtype, factors}, context_.multiprocessors);
  if (choice.way == LinearChoice::Way::stream && stream_gemm_8bit_supports(choice.stream))
    return stream_gemm_8bit(context_, {x, w, a.bias, a.out}, choice.stream, stream_workspace_);
  if (factors == Factors::int8 || choice.way == LinearChoice::Way::cublaslt_unscaled) return run_sums(a, x, w);
  Tensor out = a.out;
  out.rows = padded(x.rows, factors);
  cublas_.run(
      {Tensor{x.data, DType::i8, out.rows, x.cols, x.cols}, w.data, nullptr, out, factors, w.scales, x.scales});
  if (a.bias) add_bias(context_, a.bias, a.out);
}

void EightBitLinear::run_sums(const LinearArgs& a, const QuantizedRows& x, const QuantizedWeight& w) {
  const bool int8 = x.factors == Factors::int8;
  for (int64_t begin = 0; begin < x.rows; begin += kMostUnscaledRows) {
    const int64_t rows = std::min(kMostUnscaledRows, x.rows - begin);
    cublas_.run({Tensor{static_cast<int8_t*>(x.data) + begin * x.cols, DType::i8, rows, x.cols, x.cols}, w.data,
                 nullptr, Tensor{sums_.data(), int8 ? DType::i32 : DType::f32, rows, w.rows, w.rows},
                 x.factors});
    Tensor out = a.out;
    out.data = a.out.row<std::byte>(0) + size_t(begin * a.out.stride) * dtype_size(a.out.dtype);
    out.rows = rows;
    int8 ? scale_sums(context_, sums_.as<int32_t>(), x.scales + begin, w.scales, a.bias, out)
         : scale_sums(context_, sums_.as<float>(), x.scales + begin, w.scales, a.bias, out);
  }
}

}  // namespace sluice::cuda
