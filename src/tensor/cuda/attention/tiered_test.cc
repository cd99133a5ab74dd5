// Decode and prefill over blocks of several precisions, as the backend runs them, against ref/. The judge has
// the same values in the same blocks, and moves them itself.
#include <gtest/gtest.h>

#include <algorithm>

#include "tensor/cuda/attention/attention.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/kv_tiers/kv_tiers.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda {
namespace {

using enum KvTier;
using test::DeviceBytes;

struct Case {
  int heads, kv_heads, head_dim;
  std::vector<int> lengths;   // cached tokens, this step's included; 0: padding
  std::vector<int> rows;      // of each sequence
  std::vector<KvTier> tiers;  // of its whole blocks, in turn
  int window = 0;
  float softcap = 0;
  int layers = 2;
};

constexpr double kTolerance = 5e-3;  // bf16 output; in prefill keys, values and weights too

int blocks_for(int tokens) { return (tokens + kStripTokens - 1) / kStripTokens; }

// The step on the card and for the judge: full blocks from slot 0 on, small ones in the slots behind them.
class Step {
 public:
  explicit Step(const Case& made)
      : c_(made),
        card_geometry_{kStripTokens, c_.layers, c_.kv_heads, c_.head_dim, DType::bf16, true},
        geometry_{kStripTokens, c_.layers, c_.kv_heads, c_.head_dim, DType::f32, true},
        layer_(c_.layers - 1),
        ref_(make_ref_backend()) {
    for (const int length : c_.lengths) stride_ = std::max(stride_, blocks_for(length) + 1);
    table_.assign(c_.lengths.size() * size_t(stride_), kNoKvRef);
    std::vector<KvMove> moves;
    for (size_t s = 0; s < c_.lengths.size(); ++s) add(s, moves);
    for (KvMove& move : moves) {  // behind all full blocks
      const int per_slot = kSlotUnits / kv_units(kv_tier(move.to));
      move.to =
          kv_ref(kv_tier(move.to), (slots_ + kv_index(move.to)) * per_slot + kv_index(move.to) % per_slot);
    }
    for (KvRef& ref : table_)
      if (ref >= 0 && is_moved_[size_t(ref)] >= 0) ref = moves[size_t(is_moved_[size_t(ref)])].to;
    all_slots_ = slots_ + int(moves.size());
    fill(moves);
  }

  BatchInput judged_batch() const {
    BatchInput b;
    b.tokens = int(positions_.size());
    b.sequences = int(c_.lengths.size());
    b.one_row_sequences = int(std::count(c_.rows.begin(), c_.rows.end(), 1));
    b.positions = positions_.data(), b.row_sequence = row_sequence_.data(), b.row_starts = row_starts_.data();
    b.kv_lengths = c_.lengths.data(), b.tables[0] = table_.data();
    b.table_stride = stride_, b.groups = 1;
    for (size_t s = 0; s < c_.lengths.size(); ++s)
      if (c_.rows[s] > 1) b.prompt_blocks += blocks_for(c_.lengths[s]);
    return b;
  }

  // [rows that are judged, heads * width], twice: from the card and from the judge.
  void compare(double tolerance) {
    const int tokens = int(positions_.size());
    const int64_t width = int64_t(c_.heads) * c_.head_dim;
    const std::vector<float> q = test::random_bf16(size_t(tokens * width), 3, 1.5f);
    const std::vector<float> got = on_card(q);
    std::vector<float> mine, want;
    for (int t = 0; t < tokens; ++t) {
      const size_t s = size_t(row_sequence_[size_t(t)]);
      const int r = t - row_starts_[s];
      if (r > 1 && r < c_.rows[s] - 2 && r % 61 != 0) continue;  // of many rows, a sample
      std::vector<float> row(size_t(width), 0);
      if (c_.lengths[s] > 0) {
        BatchInput b = judged_batch();
        b.tokens = 1, b.positions += t, b.row_sequence += t;
        const Tensor one{const_cast<float*>(q.data()) + t * width, DType::f32, 1, width, width};
        ref_->attention(args(b, one, geometry_, {judged(), ref_->kv_block_bytes(geometry_), layer_, 0},
                             test::f32_tensor(row, 1, width)));
      }
      want.insert(want.end(), row.begin(), row.end());
      mine.insert(mine.end(), got.begin() + t * width, got.begin() + (t + 1) * width);
    }
    EXPECT_LT(test::relative_error(mine, want), tolerance);
  }

 private:
  void add(size_t s, std::vector<KvMove>& moves) {
    const int length = c_.lengths[s], rows = c_.rows[s], blocks = blocks_for(length);
    for (int r = 0; r < rows; ++r) {
      positions_.push_back(std::max(0, length - rows + r));
      row_sequence_.push_back(int32_t(s));
    }
    row_starts_.push_back(row_starts_.back() + rows);
    const int behind = c_.window > 0 ? std::max(0, length - rows + 1 - c_.window) / kStripTokens : 0;
    for (int b = behind; b < blocks; ++b) {
      KvRef& ref = table_[s * size_t(stride_) + size_t(b)];
      ref = slots_++;
      filled_.push_back(std::min(kStripTokens, length - b * kStripTokens));
      is_moved_.push_back(-1);
      const KvTier tier = c_.tiers[(size_t(b) + s) % c_.tiers.size()];
      if (tier == full || (b + 1) * kStripTokens > length - rows) continue;
      is_moved_.back() = int(moves.size());
      moves.push_back({ref, kv_ref(tier, int(moves.size()))});
    }
  }

  // Random tokens where there are any; all else is NaN, and must not be read.
  void fill(const std::vector<KvMove>& moves) {
    const size_t of_block = size_t(KvRows(geometry_).block_rows()) * size_t(c_.head_dim);
    judged_.assign(ref_->kv_block_bytes(geometry_) / sizeof(float) * size_t(all_slots_), NAN);
    const std::vector<float> random = test::random_bf16(1 << 20, 11);
    size_t at = 0;
    for (int slot = 0; slot < slots_; ++slot) {
      float* block = judged_.data() + size_t(slot) * (judged_.size() / size_t(all_slots_));
      for (size_t row = 0; row < of_block / size_t(c_.head_dim); ++row, block += c_.head_dim) {
        if (int(row % kStripTokens) >= filled_[size_t(slot)]) continue;
        at = (at + 7919) % (random.size() - 256);
        std::copy_n(random.begin() + std::ptrdiff_t(at), c_.head_dim, block);
      }
    }
    const size_t slot = slot_bytes(card_geometry_);
    std::vector<uint16_t> bits(slot / 2 * size_t(slots_));
    for (int i = 0; i < slots_; ++i)
      for (size_t j = 0; j < of_block; ++j)
        bits[size_t(i) * (slot / 2) + j] =
            f32_to_bf16(judged_[size_t(i) * (judged_.size() / size_t(all_slots_)) + j]);
    full_blocks_ = std::move(bits);
    moves_ = moves;
    BatchInput batch;
    batch.moves = moves_.data(), batch.move_count = int(moves_.size());
    ref_->move_blocks({batch, geometry_, judged(), ref_->kv_block_bytes(geometry_)});
  }

  std::vector<float> on_card(const std::vector<float>& q) {
    const int tokens = int(positions_.size());
    const int64_t width = int64_t(c_.heads) * c_.head_dim;
    const auto attention = make_attention();
    test::MemoryBackend memory;
    WorkspaceShape shape;
    shape.kv = card_geometry_;
    shape.max_tokens = tokens;
    shape.max_sequences = int(c_.lengths.size());
    shape.max_heads = c_.heads;
    shape.head_dim = c_.head_dim;
    shape.max_context = *std::max_element(c_.lengths.begin(), c_.lengths.end());
    CHECK(attention->reserve(shape, test::context(), memory).ok());
    const size_t slot = slot_bytes(card_geometry_), bytes = slot * size_t(all_slots_);
    DeviceBytes pool(bytes + attention->give_back_tail());
    attention->bind_pool(pool.as<std::byte>(), bytes, card_geometry_);
    CUDA_CHECK(cudaMemcpy(pool.data(), full_blocks_.data(), full_blocks_.size() * 2, cudaMemcpyHostToDevice));

    const DeviceBytes positions = test::upload(positions_), row_sequence = test::upload(row_sequence_),
                      row_starts = test::upload(row_starts_), lengths = test::upload(c_.lengths),
                      table = test::upload(table_), moves = test::upload(moves_),
                      queries = test::upload_bf16(q), out(size_t(tokens * width) * 2);
    BatchInput b = judged_batch();
    b.positions = positions.as<int32_t>(), b.row_sequence = row_sequence.as<int32_t>();
    b.row_starts = row_starts.as<int32_t>(), b.kv_lengths = lengths.as<int32_t>();
    b.tables[0] = table.as<int32_t>();
    b.moves = moves.as<KvMove>(), b.move_count = int(moves_.size());
    move_blocks(test::context(), {b, card_geometry_, pool.as<std::byte>(), slot});
    std::vector<float> first;
    for (const bool again : {false, true}) {
      attention->begin_step(b, card_geometry_, c_.heads);
      attention->run(args(b, test::bf16_tensor(queries.data(), tokens, width), card_geometry_,
                          {pool.as<std::byte>(), slot, layer_, 0},
                          test::bf16_tensor(out.data(), tokens, width)));
      auto result = test::download_bf16(out.data(), size_t(tokens * width));
      for (const float x : result) EXPECT_FALSE(std::isnan(x));
      if (again) {
        EXPECT_EQ(result, first) << "the same step, the same bits";
      }
      first = std::move(result);
    }
    return first;
  }

  AttentionArgs args(const BatchInput& b, const Tensor& q, const KvGeometry& g, const KvLayer& kv,
                     const Tensor& out) const {
    return {q, b, g, kv, c_.heads, 1 / std::sqrt(float(c_.head_dim)), c_.window, c_.softcap, out};
  }
  std::byte* judged() { return reinterpret_cast<std::byte*>(judged_.data()); }

  const Case c_;
  const KvGeometry card_geometry_, geometry_;
  const int layer_;
  std::unique_ptr<Backend> ref_;
  int stride_ = 1, slots_ = 0, all_slots_ = 0;
  std::vector<int32_t> positions_, row_sequence_, row_starts_{0};
  std::vector<KvRef> table_;
  std::vector<int> filled_;    // of full blocks: their tokens
  std::vector<int> is_moved_;  // of full blocks: by which move, or -1
  std::vector<KvMove> moves_;
  std::vector<float> judged_;
  std::vector<uint16_t> full_blocks_;
};

void expect_right(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", "
                                  << kv_tier_name(c.tiers[0]) << " of " << c.tiers.size() << " tiers, window "
                                  << c.window << ", soft cap " << c.softcap << ", " << c.lengths.size()
                                  << " sequences");
  Step(c).compare(kTolerance);
}

std::vector<int> ones(size_t n) { return std::vector<int>(n, 1); }

const std::vector<std::vector<KvTier>> kMixtures = {
    {int8}, {fp8}, {int4}, {full}, {full, int8, int4}, {int4, int8, fp8, full, int4, int4}};

TEST(TieredDecode, TiersAndMixtures) {
  for (const auto& tiers : kMixtures)
    for (const int head_dim : {64, 128, 256})
      expect_right({8, 2, head_dim, {1, 64, 65, 130, 577, 1100, 64, 0}, ones(8), tiers});
}

TEST(TieredDecode, Groups) {
  for (const int head_dim : {64, 128, 256})
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {9, 3}, {4, 1}, {8, 1}, {10, 2}, {32, 8}})
      for (const auto& tiers : {kMixtures[0], kMixtures[2], kMixtures[4]})
        expect_right({heads, kv_heads, head_dim, {700, 100, 333}, ones(3), tiers});
}

TEST(TieredDecode, LongAndRagged) {
  for (const auto& tiers : kMixtures) {
    expect_right({8, 2, 128, {9000}, ones(1), tiers});
    expect_right({4, 1, 64, {3000, 1, 700, 4097, 64, 128, 2048, 6000}, ones(8), tiers});
  }
}

TEST(TieredDecode, WindowsAndSoftCaps) {
  for (const auto& tiers : {kMixtures[0], kMixtures[2], kMixtures[5]}) {
    for (const int window : {1, 63, 64, 100, 512})
      expect_right({4, 1, 256, {1, 64, 100, 700, 2000}, ones(5), tiers, window});
    expect_right({8, 2, 128, {5, 100, 1000}, ones(3), tiers, 0, 5.f});
    expect_right({8, 2, 64, {5, 300, 1000}, ones(3), tiers, 200, 30.f});
  }
}

TEST(TieredPrefill, BesideDecode) {
  for (const auto& tiers : kMixtures)
    for (const int head_dim : {64, 128, 256})
      expect_right({9, 3, head_dim, {300, 50, 1, 600, 1000, 90, 0, 640}, {1, 20, 1, 300, 7, 2, 1, 64}, tiers});
}

TEST(TieredPrefill, InPiecesAndWindows) {
  for (const auto& tiers : {kMixtures[0], kMixtures[2], kMixtures[4]}) {
    expect_right({8, 2, 128, {6000, 1}, {107, 1}, tiers});
    expect_right({4, 1, 256, {2000, 100, 700}, {33, 7, 129}, tiers, 512});
    expect_right({4, 2, 64, {3000, 60}, {9, 30}, tiers, 0, 30.f});
  }
}

// More prompts than the stretch for unpacked blocks holds at once.
TEST(TieredPrefill, PromptsTakeTurns) {
  expect_right({2, 1, 64, {70000, 64000, 300, 50000, 90000}, {20, 3, 1, 70, 2}, {int8, int4}, 0, 0, 1});
}

}  // namespace
}  // namespace sluice::cuda
