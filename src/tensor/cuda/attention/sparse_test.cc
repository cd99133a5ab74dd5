// Decode over a part of long contexts against ref/, which chooses by the definition: the card's bounds, made
// while the contexts are stored as prompts are, and its choice, are right if what attention makes of them is.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tensor/cuda/attention/attention.h"
#include "tensor/cuda/attention/sparse.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/kv_tiers/kv_tiers.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda {
namespace {

struct Case {
  int heads, kv_heads, head_dim, block_tokens;
  std::vector<int> lengths;  // with the step's one row; 0: padding
  SparseDecode sparse;
  KvTier tier = KvTier::full;  // of every other block but the first, in which values alone are judged loosely
};
constexpr int kLayers = 3, kLayer = 2;

class Contexts {
 public:
  explicit Contexts(const Case& c) : c_(c), tiered_(c.tier != KvTier::full), ref_(make_ref_backend()) {
    card_ = {c.block_tokens, kLayers, c.kv_heads, c.head_dim, DType::bf16, tiered_, c.sparse};
    judged_ = card_;
    judged_.dtype = DType::f32;
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    stride_ = (longest + c.block_tokens - 1) / c.block_tokens + 1;
    for (const int length : c.lengths) blocks_ += (length + c.block_tokens - 1) / c.block_tokens;
    slots_ = 2 * blocks_ + 2;
    place_blocks();
    judged_pool_.assign(ref_->kv_block_bytes(judged_) / sizeof(float) * size_t(slots_), NAN);
    fill();
    WorkspaceShape shape;
    shape.kv = card_, shape.max_tokens = longest, shape.max_sequences = int(c.lengths.size());
    shape.max_heads = c.heads, shape.head_dim = c.head_dim, shape.max_context = longest;
    CHECK(attention_->reserve(shape, test::context(), memory_).ok());
    const size_t bytes = slot() * size_t(slots_);
    pool_ = test::DeviceBytes(bytes + attention_->give_back_tail());
    attention_->bind_pool(pool_.as<std::byte>(), bytes, card_);
    upload_blocks();
    store_prompts();
    if (tiered_) convert();
  }

  // The step's rows, from the card.
  std::vector<float> on_card() {
    const Batch b(*this, false);
    const test::DeviceBytes q = test::upload_bf16(queries()), out(q.bytes());
    attention_->begin_step(b.batch, card_, c_.heads);
    attention_->run({test::bf16_tensor(q.data(), sequences(), width()),
                     b.batch,
                     card_,
                     {pool_.as<std::byte>(), slot(), kLayer, 0},
                     c_.heads,
                     scale(),
                     0,
                     0,
                     test::bf16_tensor(out.data(), sequences(), width())});
    return test::download_bf16(out.data(), size_t(sequences() * width()));
  }
  std::vector<float> judged(const SparseDecode& sparse) {
    std::vector<float> q = queries(), all;
    KvGeometry g = judged_;
    g.sparse = sparse;
    for (int s = 0; s < sequences(); ++s) {
      std::vector<float> row(size_t(width()), 0);
      if (c_.lengths[size_t(s)] > 0) {
        BatchInput b;
        const int32_t starts[] = {0, 1}, position = c_.lengths[size_t(s)] - 1, zero = 0;
        b.tokens = b.sequences = 1, b.positions = &position, b.row_sequence = &zero, b.row_starts = starts;
        b.kv_lengths = &c_.lengths[size_t(s)], b.tables[0] = full_table_.data() + s * stride_;
        b.table_stride = stride_, b.groups = 1;
        const Tensor one{q.data() + int64_t(s) * width(), DType::f32, 1, width(), width()};
        ref_->attention(
            {one,
             b,
             g,
             {reinterpret_cast<std::byte*>(judged_pool_.data()), ref_->kv_block_bytes(judged_), kLayer, 0},
             c_.heads,
             scale(),
             0,
             0,
             test::f32_tensor(row, 1, width())});
      }
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

 private:
  int sequences() const { return int(c_.lengths.size()); }
  int64_t width() const { return int64_t(c_.heads) * c_.head_dim; }
  float scale() const { return 1 / std::sqrt(float(c_.head_dim)); }
  size_t slot() const { return slot_bytes(card_); }
  std::vector<float> queries() const { return test::random_bf16(size_t(sequences() * width()), 5, 1.5f); }

  // A step's arrays on the card: one row of each sequence, or all its tokens but the last as a prompt.
  struct Batch {
    test::DeviceBytes positions{0}, row_sequence{0}, row_starts{0}, lengths{0}, table{0};
    BatchInput batch;
    Batch(const Contexts& of, bool prompts) {
      std::vector<int32_t> at, whose, starts{0}, until;
      for (int s = 0; s < of.sequences(); ++s) {
        const int length = of.c_.lengths[size_t(s)], rows = prompts ? std::max(0, length - 1) : 1;
        for (int r = 0; r < rows; ++r) {
          at.push_back(std::max(0, prompts ? r : length - 1));
          whose.push_back(s);
        }
        starts.push_back(int(at.size()));
        until.push_back(prompts ? rows : length);
      }
      positions = test::upload(at), row_sequence = test::upload(whose), row_starts = test::upload(starts);
      lengths = test::upload(until), table = test::upload(prompts ? of.full_table_ : of.table_);
      batch.tokens = int(at.size()), batch.sequences = of.sequences();
      batch.one_row_sequences = prompts ? 0 : batch.sequences;
      batch.positions = positions.as<int32_t>(), batch.row_sequence = row_sequence.as<int32_t>();
      batch.row_starts = row_starts.as<int32_t>(), batch.kv_lengths = lengths.as<int32_t>();
      batch.tables[0] = table.as<int32_t>(), batch.table_stride = of.stride_, batch.groups = 1;
    }
  };

  void place_blocks() {
    std::vector<int32_t> ids(static_cast<size_t>(blocks_));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
    full_table_.assign(size_t(sequences() * stride_), -1);
    for (int s = 0; s < sequences(); ++s)
      for (int b = 0; b * c_.block_tokens < c_.lengths[size_t(s)]; ++b) {
        full_table_[size_t(s * stride_ + b)] = ids.back();
        ids.pop_back();
      }
    table_ = full_table_;
  }
  // Keys of unlike sizes, so that blocks differ; what is behind a context stays NaN.
  void fill() {
    const std::vector<float> random = test::random_bf16(1 << 20, 11);
    const KvRows rows(judged_);
    const size_t block = judged_pool_.size() / size_t(slots_);
    size_t at = 0;
    for (int s = 0; s < sequences(); ++s)
      for (int p = 0; p < c_.lengths[size_t(s)]; ++p)
        for (int value = 0; value < 2; ++value)
          for (int g = 0; g < c_.kv_heads; ++g) {
            at = (at + 7919) % (random.size() - 256);
            const int64_t row = rows.layer_row(kLayer) + (value ? rows.value_rows() : 0) +
                                int64_t(g) * c_.block_tokens + p % c_.block_tokens;
            std::copy_n(
                random.begin() + std::ptrdiff_t(at), c_.head_dim,
                judged_pool_.begin() +
                    std::ptrdiff_t(size_t(full_table_[size_t(s * stride_ + p / c_.block_tokens)]) * block +
                                   size_t(row * c_.head_dim)));
          }
  }
  void upload_blocks() {
    const size_t values = KvRows(judged_).block_bytes() / 2, block = judged_pool_.size() / size_t(slots_);
    for (int i = 0; i < blocks_; ++i) {
      const auto from = judged_pool_.begin() + std::ptrdiff_t(size_t(i) * block);
      const test::DeviceBytes bits = test::upload_bf16({from, from + std::ptrdiff_t(values)});
      CUDA_CHECK(cudaMemcpy(pool_.as<std::byte>() + size_t(i) * slot(), bits.data(), values * 2,
                            cudaMemcpyDeviceToDevice));
    }
  }
  // As prompts would: all whole blocks get their bounds, but for one that the step's row makes whole.
  void store_prompts() {
    const Batch b(*this, true);
    const int64_t tokens = b.batch.tokens;
    const test::DeviceBytes q = test::upload_bf16(std::vector<float>(size_t(tokens * width()), 0.5f)),
                            out(q.bytes());
    attention_->begin_step(b.batch, card_, c_.heads);
    attention_->run({test::bf16_tensor(q.data(), tokens, width()),
                     b.batch,
                     card_,
                     {pool_.as<std::byte>(), slot(), kLayer, 0},
                     c_.heads,
                     scale(),
                     0,
                     0,
                     test::bf16_tensor(out.data(), tokens, width())});
    test::wait();
  }
  void convert() {
    std::vector<KvMove> moves;
    for (int s = 0; s < sequences(); ++s)
      for (int b = 1; (b + 1) * c_.block_tokens < c_.lengths[size_t(s)]; b += 2) {
        KvRef& ref = table_[size_t(s * stride_ + b)];
        const KvRef to = kv_ref(c_.tier, blocks_ * (kSlotUnits / kv_units(c_.tier)) + int(moves.size()));
        moves.push_back({std::exchange(ref, to), to});
      }
    const test::DeviceBytes on_card = test::upload(moves);
    BatchInput batch;
    batch.moves = on_card.as<KvMove>(), batch.move_count = int(moves.size());
    kv_tiers_prepare(card_);
    move_blocks(test::context(), {batch, card_, pool_.as<std::byte>(), slot()});
    test::wait();
  }

  const Case c_;
  const bool tiered_;
  std::unique_ptr<Backend> ref_;
  KvGeometry card_, judged_;
  int stride_ = 0, blocks_ = 0, slots_ = 0;
  std::vector<KvRef> full_table_, table_;
  std::vector<float> judged_pool_;
  test::MemoryBackend memory_;
  std::unique_ptr<Attention> attention_ = make_attention();
  test::DeviceBytes pool_{0};
};

void expect_right(const Case& c, double tolerance = 4e-3) {
  SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim
                                  << ", blocks of " << c.block_tokens << ", " << kv_tier_name(c.tier)
                                  << ", keeps " << c.sparse.keep_share);
  Contexts contexts(c);
  const auto got = contexts.on_card(), want = contexts.judged(c.sparse), whole = contexts.judged({});
  EXPECT_GT(test::relative_error(whole, want), 0.1) << "nothing was left out";
  EXPECT_LT(test::relative_error(got, want), tolerance);
  EXPECT_EQ(contexts.on_card(), got) << "the same step, the same bits";
}

TEST(SparseDecode, ReadsTheBlocksThatTheDefinitionChooses) {
  for (const int head_dim : {64, 128, 256, 80})
    for (const int block_tokens : {16, 64})
      for (const float keep : {0.1f, 0.3f, 0.5f})
        expect_right({8, 2, head_dim, block_tokens, {2000, 1, 130, 0, 2048, 1025, 300}, {500, keep}});
}

TEST(SparseDecode, Groups) {
  for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {9, 3}, {4, 1}, {32, 8}, {16, 1}})
    expect_right({heads, kv_heads, 64, 16, {1500, 700}, {200, 0.25f}});
}

TEST(SparseDecode, LongContexts) {
  expect_right({8, 2, 128, 16, {20000, 9000}, {8192, 0.25f}});
  expect_right({4, 1, 64, 32, {16384}, {8192, 0.05f}});
}

// Bounds go with a block that is moved to a smaller tier.
TEST(SparseDecode, ChoosesAmongBlocksOfSeveralTiers) {
  for (const auto& [tier, tolerance] :
       {std::pair{KvTier::int8, 0.03}, {KvTier::fp8, 0.06}, {KvTier::int4, 0.15}})
    for (const int head_dim : {64, 128, 256})
      expect_right({8, 2, head_dim, 64, {6000, 100, 3000, 0, 2048}, {1000, 0.3f}, tier}, tolerance);
}

TEST(SparseDecode, ItsWorkspaceIsCountedBeforehand) {
  WorkspaceShape shape;
  shape.max_sequences = 256, shape.max_context = 131072;
  shape.kv = {16, 32, 8, 128, DType::bf16, false, {}};
  EXPECT_EQ(kv_workspace_bytes(shape), 0u);
  shape.kv.sparse = {8192, 0.5f};
  EXPECT_EQ(kv_workspace_bytes(shape), size_t{256} * 8 * 8193 * 8);
  shape.kv = {64, 32, 8, 128, DType::bf16, true, {}};
  EXPECT_EQ(kv_workspace_bytes(shape), size_t{2049} * 64 * 8 * 128 * 2 * 2) << "of one layer, in full";
}

// All scores alike: the last ones are kept, in order.
TEST(SparseDecode, OfEqualsTheLaterBlockIsKept) {
  Case c{4, 1, 64, 16, {1000}, {200, 0.25f}};
  Contexts contexts(c);
  EXPECT_LT(test::relative_error(contexts.on_card(), contexts.judged(c.sparse)), 4e-3);
}

}  // namespace
}  // namespace sluice::cuda
