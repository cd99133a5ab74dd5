#include "tensor/cuda/experts/experts.h"

#include <gtest/gtest.h>

#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda::test {
namespace {

MemoryBackend& memory() {
  static MemoryBackend backend;
  return backend;
}

class MatrixRows final : public RowSource {
 public:
  MatrixRows(const std::vector<float>& values, int64_t cols) : values_(values), cols_(cols) {}
  int64_t rows() const override { return int64_t(values_.size()) / cols_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return {}; }
  void decode(int64_t row, DecodedRow& out) const override {
    const auto* begin = reinterpret_cast<const std::byte*>(values_.data() + row * cols_);
    out.raw.assign(begin, begin + cols_ * int64_t(sizeof(float)));
  }

 private:
  const std::vector<float>& values_;
  int64_t cols_;
};

struct Shape {
  int64_t rows, hidden, ffn;
  int experts, per_token;
  bool normalised = true;
  Activation activation = Activation::silu;
};

// The same matrix for the card (bf16) and for the judge (its float32).
struct Matrix {
  Weight card, judged;
};
Matrix matrix(Backend& judge, int64_t n, int64_t k, uint32_t seed) {
  const auto values = random_bf16(size_t(n * k), seed, 1 / std::sqrt(float(k)));
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = f32_to_bf16(values[i]);
  Matrix m{{n, k, {}}, {}};
  m.card.parts.push_back({0, n, {WeightElement::bf16, 0, false}, memory().alloc(bits.size() * 2)});
  memory().copy_in(m.card.parts[0].data.data(), bits.data(), bits.size() * 2);
  const MatrixRows rows(values, k);
  const Backend::PackSource source{&rows, {}};
  m.judged = std::move(judge.pack({&source, 1})).value();
  return m;
}

// The router's logits are given, so that both choose the same experts; what the card rounds to bf16 between
// the products is what may differ.
void expect_agreement(const Shape& s, const std::vector<float>& logits) {
  SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.hidden << " columns, " << s.ffn << " ffn, "
                                  << s.per_token << " of " << s.experts << " experts");
  static const auto judge = make_ref_backend();
  static auto on_card = std::move(make_experts(context(), memory())).value();
  const int64_t choices = s.rows * s.per_token;
  std::vector<ExpertWeights> card(static_cast<size_t>(s.experts)), judged(static_cast<size_t>(s.experts));
  for (size_t e = 0; e < card.size(); ++e) {
    Matrix gate_up = matrix(*judge, 2 * s.ffn, s.hidden, uint32_t(2 * e + 1)),
           down = matrix(*judge, s.hidden, s.ffn, uint32_t(2 * e + 2));
    card[e] = {std::move(gate_up.card), std::move(down.card)};
    judged[e] = {std::move(gate_up.judged), std::move(down.judged)};
  }
  std::vector<float> x = random_bf16(size_t(s.rows * s.hidden), 77), routed = logits;
  const auto run = [&](auto& by, std::span<const ExpertWeights> weights, Tensor in, Tensor router,
                       Tensor scratch[4], Tensor out) {
    by.experts({.x = in,
                .router = router,
                .experts = weights,
                .per_token = s.per_token,
                .normalised = s.normalised,
                .activation = s.activation,
                .gathered = scratch[0],
                .gate_up = scratch[1],
                .gated = scratch[2],
                .routing = scratch[3],
                .out = out});
  };
  std::vector<float> gathered(size_t(choices * s.hidden)), gate_up(size_t(choices * 2 * s.ffn)),
      gated(size_t(choices * s.ffn)), want(x.size());
  std::vector<int32_t> routing(size_t(4 * choices));
  const Tensor routing_host{routing.data(), DType::i32, s.rows, 4 * s.per_token, 4 * s.per_token};
  Tensor host[4] = {f32_tensor(gathered, choices, s.hidden), f32_tensor(gate_up, choices, 2 * s.ffn),
                    f32_tensor(gated, choices, s.ffn), routing_host};
  run(*judge, judged, f32_tensor(x, s.rows, s.hidden), f32_tensor(routed, s.rows, s.experts), host,
      f32_tensor(want, s.rows, s.hidden));

  struct OnCard {
    void experts(const ExpertsArgs& a) { on_card->run(a); }
  } by;
  const DeviceBytes in = upload_bf16(x), router = upload(logits), d_gathered(size_t(choices * s.hidden) * 2),
                    d_gate_up(size_t(choices * s.ffn) * 4), d_gated(size_t(choices * s.ffn) * 2),
                    d_routing(size_t(choices) * 16);
  Tensor device[4] = {bf16_tensor(d_gathered.data(), choices, s.hidden),
                      bf16_tensor(d_gate_up.data(), choices, 2 * s.ffn),
                      bf16_tensor(d_gated.data(), choices, s.ffn),
                      Tensor{d_routing.data(), DType::i32, s.rows, 4 * s.per_token, 4 * s.per_token}};
  const Tensor in_place = bf16_tensor(in.data(), s.rows, s.hidden);
  run(by, card, in_place, Tensor{router.data(), DType::f32, s.rows, s.experts, s.experts}, device, in_place);
  EXPECT_LT(relative_error(download_bf16(in.data(), x.size()), want), 8e-3);
}

std::vector<float> random_logits(const Shape& s, uint32_t seed) {
  return random_bf16(size_t(s.rows * s.experts), seed, 2);
}

TEST(Experts, AgreeWithTheJudge) {
  for (const Shape& s : {Shape{1, 64, 32, 4, 2}, Shape{7, 72, 40, 8, 2, true, Activation::gelu_tanh},
                         Shape{33, 128, 64, 8, 8}, Shape{64, 256, 96, 128, 8}, Shape{300, 192, 128, 4, 2},
                         Shape{500, 128, 72, 60, 4, false}, Shape{2, 128, 64, 512, 1, false}})
    expect_agreement(s, random_logits(s, uint32_t(s.rows)));
}

// Everybody wants one expert, and equal logits go to the lowest.
TEST(Experts, OneForAllAndTies) {
  const Shape s{200, 128, 64, 16, 2};
  std::vector<float> logits(size_t(s.rows * s.experts), 0.5f);
  expect_agreement(s, logits);
  for (size_t i = 0; i < logits.size(); i += size_t(s.experts)) logits[i + 15] = 3, logits[i + 7] = 2;
  expect_agreement(s, logits);
}

}  // namespace
}  // namespace sluice::cuda::test
