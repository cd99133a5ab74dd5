#include "engine/logits_check.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr int kLooks = 16;
constexpr float kSame = 1e-6f;  // relative: no more than rounding tells them apart

int place(int look, int vocab) { return int(int64_t(look) * vocab / kLooks); }

bool same(float least, float most) { return most - least <= kSame * std::max(1.0f, std::abs(most)); }

}  // namespace

LogitsState look_at_logits(const float* row, int vocab) {
  float least = row[0], most = row[0];
  for (int i = 0; i < kLooks; ++i) {
    const float x = row[place(i, vocab)];
    if (std::isnan(x)) return LogitsState::nan;
    least = std::min(least, x), most = std::max(most, x);
  }
  if (!same(least, most)) return LogitsState::fine;
  const auto [a, b] = std::minmax_element(row, row + vocab);
  return same(*a, *b) ? LogitsState::flat : LogitsState::fine;
}

bool is_unlikely(const float* row, int vocab, int32_t id) {
  for (int i = 0; i < kLooks; ++i)
    if (row[place(i, vocab)] > row[id]) return true;
  return false;
}

void FirstBroken::after(int layer, const char* op, const Tensor& out) {
  if (also_) also_->after(layer, op, out);
  if (found_.op || out.dtype != DType::f32) return;
  for (int64_t r = 0; r < out.rows; ++r) {
    if (!is_broken(out.row<float>(r), out.cols)) continue;
    found_ = {op, layer};
    return;
  }
}

bool FirstBroken::is_broken(const float* row, int64_t n) const {
  if (zeros_) return std::all_of(row, row + n, [](float x) { return x == 0; });
  return std::any_of(row, row + n, [](float x) { return !std::isfinite(x); });
}

}  // namespace sluice
