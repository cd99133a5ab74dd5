// cos and sin of every row's rotation, computed once per step and set of frequencies (a model has one or two)
// and used by all layers. Owner: the CPU backend.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "tensor/backend.h"
#include "tensor/cpu/host_memory.h"

namespace sluice::cpu {

class AngleTable {
 public:
  const float* cos(int64_t row) const { return values_.data() + row * 2 * half_; }
  const float* sin(int64_t row) const { return cos(row) + half_; }

 private:
  friend class AngleTables;
  const float* inv_freq_ = nullptr;  // what it was made for; null: nothing in this step
  int half_ = 0;
  float magnitude_ = 0;
  ZeroedArray<float> values_;  // [T][cos, sin][rotary / 2]
};

class AngleTables {
 public:
  void reserve(int max_tokens, int head_dim) {
    for (AngleTable& t : tables_) t.values_ = ZeroedArray<float>(size_t(max_tokens) * size_t(head_dim));
    begin_step();
  }
  void begin_step() {
    for (AngleTable& t : tables_) t.inv_freq_ = nullptr;
  }

  // for_each(n, f) runs f(row) for all rows, on as many threads as it likes.
  template <typename ForEach>
  const AngleTable& get(const BatchInput& batch, const float* inv_freq, int rotary, float magnitude,
                        ForEach for_each) {
    const int half = rotary / 2;
    for (AngleTable& t : tables_) {
      if (t.inv_freq_ == inv_freq && inv_freq && t.half_ == half && t.magnitude_ == magnitude) return t;
    }
    AngleTable& t = tables_[next_++ % tables_.size()];
    CHECK(size_t(batch.tokens) * 2 * size_t(half) <= t.values_.size(),
          "more rows or wider heads than reserved");
    t.inv_freq_ = inv_freq;
    t.half_ = half;
    t.magnitude_ = magnitude;
    for_each(batch.tokens, [&](int64_t row) {
      float* cos = t.values_.data() + row * 2 * half;
      for (int i = 0; i < half; ++i) {
        const float angle = float(batch.positions[row]) * inv_freq[i];
        cos[i] = std::cos(angle) * magnitude;
        cos[half + i] = std::sin(angle) * magnitude;
      }
    });
    return t;
  }

 private:
  std::array<AngleTable, 4> tables_;
  size_t next_ = 0;
};

}  // namespace sluice::cpu
