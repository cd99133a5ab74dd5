#include "tensor/cuda/linear/int4_linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "tensor/cuda/device/cuda_check.h"
#include "tensor/cuda/linear/int4_choice.h"
#include "tensor/cuda/linear/int4_gemm.h"
#include "tensor/cuda/linear/int4_rows.h"
#include "tensor/cuda/linear/int4_stream.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kFlags = 256;                            // in a buffer
constexpr int64_t kMostExpandedBytes = int64_t{64} << 20;  // of weights as bf16, at a time

}  // namespace

void Int4Linear::prepare(const Weight::Part& part, int64_t cols, Backend& backend) {
  if (weights_.empty()) int4_stream_prepare(), int4_gemm_prepare();
  CHECK(part.format.element == WeightElement::int4);
  const Int4Layout layout{part.rows, cols, part.format.group};
  const void* data = part.data.data();
  const auto index = int64_t(weights_.size());
  if (index % kFlags == 0) odd_zeros_.push_back(backend.alloc(kFlags * sizeof(int)));
  weights_[data] = {index, layout, false, {}};
  most_bytes_ = std::max(most_bytes_, layout.rows * layout.cols * int64_t(sizeof(uint16_t)));
  // Without memory for a flag its zeros count as odd, and reserve() will say what is wrong.
  if (int* flags = odd_zeros_.back().as<int>())
    int4_find_odd_zeros(context_, data, layout, flags + index % kFlags);
}

std::vector<Int4Linear::Copy> Int4Linear::copy(Backend& backend, size_t spare) {
  const auto bytes = [](const Int4Layout& l) { return size_t(l.rows * l.cols) * sizeof(uint16_t); };
  size_t all = 0;
  for (const auto& [data, known] : weights_) all += bytes(known.layout);
  if (all == 0 || all > spare) return {};
  std::vector<Copy> copies;
  for (auto& [data, known] : weights_) {
    known.copy = backend.alloc(bytes(known.layout));
    if (!known.copy.data()) {  // others take memory too: none is missed
      for (auto& [unused, each] : weights_) each.copy = {};
      return {};
    }
    int4_expand(context_, data, known.layout, 0, known.layout.rows, known.copy.data());
    copies.push_back({known.layout.rows, known.layout.cols, known.copy.data()});
  }
  LOG(info, "linears: {:.1f} GB of 4-bit weights are kept as bf16 too, for steps of more than {} tokens",
      double(all) / 1e9, kMostRowsBesideCopy);
  return copies;
}

Status Int4Linear::reserve(Backend& backend) {
  if (weights_.empty()) return {};
  const Error full{ErrorCode::kResourceExhausted, "no memory left on the card for 4-bit linears' workspace"};
  std::vector<int> odd(odd_zeros_.size() * kFlags);
  for (size_t i = 0; i < odd_zeros_.size(); ++i) {
    if (!odd_zeros_[i].data()) return full;
    backend.copy_out(&odd[i * kFlags], odd_zeros_[i].data(), kFlags * sizeof(int));
  }
  for (auto& [data, known] : weights_) known.integer_zeros = odd[size_t(known.index)] == 0;
  expanded_ = backend.alloc(size_t(std::min(most_bytes_, kMostExpandedBytes)));
  if (!expanded_.data()) return full;
  return {};
}

void Int4Linear::run(const LinearArgs& a, const Weight::Part& part) {
  const Int4Layout layout{part.rows, a.w.cols, part.format.group};
  const void* data = part.data.data();
  const auto found = weights_.find(data);
  CHECK(found != weights_.end(), "a weight that was not prepared");
  const Int4Choice choice =
      choose_int4({a.x.rows, layout.rows, layout.cols, layout.group}, found->second.integer_zeros,
                  found->second.copy.data() != nullptr, context_.multiprocessors);
  if (choice.way == Int4Choice::Way::stream && int4_stream_supports(a))
    int4_stream(context_, a, data, layout, choice.stream);
  else if (choice.way == Int4Choice::Way::gemm && int4_gemm_supports(a))
    int4_gemm(context_, a, data, layout, choice.gemm);
  else if (const void* copy = found->second.copy.data())
    cublas_.run({a.x, copy, a.bias, a.out});
  else
    by_cublaslt(a, data, layout);
}

void Int4Linear::by_cublaslt(const LinearArgs& a, const void* data, const Int4Layout& layout) {
  CHECK(expanded_.data(), "a product before reserve()");
  const int64_t row_bytes = layout.cols * int64_t(sizeof(uint16_t));
  const int64_t each = int64_t(expanded_.bytes()) / row_bytes / kPanelRows * kPanelRows;
  CHECK(each > 0);
  for (int64_t row = 0; row < layout.rows; row += each) {
    const int64_t rows = std::min(each, layout.rows - row);
    int4_expand(context_, data, layout, row, rows, expanded_.data());
    cublas_.run({a.x, expanded_.data(), a.bias ? a.bias + row : nullptr, a.out.columns(row, rows)});
  }
}

}  // namespace sluice::cuda
