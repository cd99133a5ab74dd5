// Blocks from every tier to every tier, all layers and heads, against ref/: unpacked again, they hold what the
// judge's do, to the bit.
#include "tensor/cuda/kv_tiers/kv_tiers.h"

#include <gtest/gtest.h>

#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {
namespace {

using enum KvTier;

struct Shape {
  int kv_heads, head_dim;
};
constexpr int kLayers = 3, kSlots = 12;

// A card's pool and the judge's, with the same values in full blocks 0 and 1.
class Pools {
 public:
  explicit Pools(const Shape& s)
      : card_geometry_{kStripTokens, kLayers, s.kv_heads, s.head_dim, DType::bf16, true},
        geometry_{kStripTokens, kLayers, s.kv_heads, s.head_dim, DType::f32, true},
        ref_(make_ref_backend()),
        values_(size_t(KvRows(geometry_).block_rows()) * size_t(s.head_dim)),
        judged_(ref_->kv_block_bytes(geometry_) / sizeof(float) * kSlots, NAN),
        card_(slot_bytes(card_geometry_) * kSlots) {
    kv_tiers_prepare(card_geometry_);
    for (const int block : {0, 1}) {
      std::vector<float> x = test::random_bf16(values_, uint32_t(block) + 1);
      for (size_t i = 0; i < values_; i += 37) x[i] *= 8;  // of unlike sizes
      std::fill_n(x.begin(), 5 * s.head_dim, 0.0f);        // nothing to scale
      std::copy(x.begin(), x.end(), judged_at(block));
      const test::DeviceBytes bits = test::upload_bf16(x);
      CUDA_CHECK(cudaMemcpy(card_.as<std::byte>() + size_t(block) * slot_bytes(card_geometry_), bits.data(),
                            values_ * 2, cudaMemcpyDeviceToDevice));
    }
  }

  void move(const std::vector<KvMove>& moves) {
    const test::DeviceBytes on_card = test::upload(moves);
    BatchInput batch;
    batch.move_count = int(moves.size());
    batch.moves = moves.data();
    ref_->move_blocks(
        {batch, geometry_, reinterpret_cast<std::byte*>(judged_.data()), ref_->kv_block_bytes(geometry_)});
    batch.moves = on_card.as<KvMove>();
    move_blocks(test::context(), {batch, card_geometry_, card_.as<std::byte>(), slot_bytes(card_geometry_)});
    test::wait();
  }
  // Of a full block, as bf16.
  std::vector<float> on_card(int block) const {
    return test::download_bf16(card_.as<std::byte>() + size_t(block) * slot_bytes(card_geometry_), values_);
  }
  std::vector<float> judged(int block) {
    std::vector<float> x(judged_at(block), judged_at(block) + values_);
    for (float& v : x) v = bf16_to_f32(f32_to_bf16(v));
    return x;
  }

 private:
  float* judged_at(int block) { return judged_.data() + size_t(block) * (judged_.size() / kSlots); }

  KvGeometry card_geometry_, geometry_;
  std::unique_ptr<Backend> ref_;
  size_t values_;  // of a full block
  std::vector<float> judged_;
  test::DeviceBytes card_;
};

TEST(CudaKvTiers, EveryPairOfTiers) {
  for (const Shape& shape : {Shape{8, 128}, {3, 64}, {1, 256}}) {
    for (const KvTier first : {full, int8, fp8, int4}) {
      for (const KvTier second : {full, int8, fp8, int4}) {
        SCOPED_TRACE(testing::Message() << kv_tier_name(first) << ", then " << kv_tier_name(second)
                                        << ", heads of " << shape.head_dim);
        Pools pools(shape);
        // Two blocks at once, to places in one slot where the tier has several there.
        const auto place = [](KvTier tier, int slot, int i) {
          return kv_ref(tier, slot * (kSlotUnits / kv_units(tier)) + i);
        };
        pools.move({{0, place(first, 2, 0)}, {1, place(first, 2, 1)}});
        pools.move({{place(first, 2, 0), place(second, 5, 1)}, {place(first, 2, 1), place(second, 5, 0)}});
        pools.move({{place(second, 5, 1), 8}, {place(second, 5, 0), 9}});
        for (const int block : {8, 9}) EXPECT_EQ(pools.on_card(block), pools.judged(block));
      }
    }
  }
}

TEST(CudaKvTiers, ASlotHoldsWhatItsTiersSay) {
  for (const Shape& shape : {Shape{8, 128}, {3, 64}, {1, 256}}) {
    const KvGeometry g{kStripTokens, kLayers, shape.kv_heads, shape.head_dim, DType::bf16, true};
    EXPECT_GE(slot_bytes(g), KvRows(g).block_bytes());
    EXPECT_LE(double(slot_bytes(g)), 1.2 * double(KvRows(g).block_bytes()));
    EXPECT_EQ(slot_bytes(g) % size_t(2 * shape.head_dim), 0u) << "the tensor map counts rows";
    for (const KvTier tier : {int8, fp8, int4})
      EXPECT_LE(size_t(kLayers * shape.kv_heads * strip_bytes(tier, shape.head_dim)),
                slot_bytes(g) / kSlotUnits * size_t(kv_units(tier)));
  }
}

}  // namespace
}  // namespace sluice::cuda
