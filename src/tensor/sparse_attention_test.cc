// Decode over a part of a long context against ref/, which chooses by the definition (sparse_decode.h).
#include <numeric>

#include "tensor/ops_fixture.h"

namespace sluice::test {
namespace {

struct Shape {
  Heads heads;
  int block_tokens;
  std::vector<Part> parts;
  SparseDecode sparse;
};

constexpr int kBlocks = 130;  // of a sequence

// Contexts are stored in chunks, as prompts are, then the step's rows attend. What ref/ stores need not attend.
std::vector<float> attend(std::unique_ptr<Backend> backend, const Shape& c, const SparseDecode& sparse,
                          bool tiered = false) {
  const bool reference = backend->info().name == "reference";
  const KvGeometry g{c.block_tokens, 2, c.heads.kv_heads, c.heads.head_dim, DType::f16, tiered, sparse};
  Lab lab(std::move(backend), g, kBlocks * int(c.parts.size()) + kBlocks, 1);
  CHECK(lab.backend->reserve({4096, 16, 4096, 16, 256, 8192, 1024, 16, g}).ok());
  std::vector<int> ids(c.parts.size());
  std::iota(ids.begin(), ids.end(), 0);
  for (size_t s = 0; s < c.parts.size(); ++s)
    for (int from = 0, rows; from < c.parts[s].context; from += rows) {
      rows = std::min(c.parts[s].context - from, 100);
      const Step fill({{from, rows}}, {int(s)}, c.block_tokens, 0, kBlocks);
      auto qkv = random_values(size_t(rows * c.heads.width()), uint32_t(1000 * s) + uint32_t(from));
      store_and_attend(lab, fill, c.heads, qkv, {}, !reference);
    }
  Step step(c.parts, ids, c.block_tokens, 0, kBlocks);
  if (tiered) {
    int to = kBlocks * int(c.parts.size()) * 2;
    for (size_t s = 0; s < c.parts.size(); ++s)
      for (int i = 1; i < c.parts[s].context / c.block_tokens; i += 2) {
        KvRef& ref = step.table(s)[size_t(i)];
        step.moves.push_back({ref, kv_ref(KvTier::int8, to++)});
        ref = step.moves.back().to;
      }
    const BatchInput batch = step.batch();
    lab.backend->move_blocks({batch, lab.geometry, lab.kv.pool, lab.kv.block_bytes});
    step.moves.clear();
  }
  auto qkv = random_values(size_t(step.batch().tokens * c.heads.width()), 77, 2);
  return store_and_attend(lab, step, c.heads, qkv, {});
}

const Shape kShapes[] = {
    {{9, 3, 64}, 16, {{1500, 1}, {130, 7}, {799, 1}, {40, 1}}, {200, 0.3f}},
    {{4, 1, 256}, 16, {{700, 1}}, {100, 0.2f}},
    {{5, 1, 80}, 32, {{1023, 1}, {1024, 1}}, {500, 0.25f}},
    {{2, 2, 64}, 64, {{2000, 1}}, {1000, 0.2f}},
};

TEST(SparseAttention, ReadsTheBlocksThatTheDefinitionChooses) {
  for (const Shape& c : kShapes) {
    SCOPED_TRACE(testing::Message() << "heads of " << c.heads.head_dim << ", blocks of " << c.block_tokens);
    const auto whole = attend(make_ref_backend(), c, {});
    const auto want = attend(make_ref_backend(), c, c.sparse);
    EXPECT_NE(want, whole) << "nothing was left out";
    for (const Candidate& candidate : candidates()) {
      SCOPED_TRACE(candidate.name());
      expect_close(attend(make_cpu_backend({candidate.threads, candidate.isa}).value(), c, c.sparse), want,
                   2e-3f, 2e-3f);
    }
  }
}

TEST(SparseAttention, KeepingAllIsAttentionAsItIs) {
  const Shape& c = kShapes[0];
  for (const Candidate& candidate : candidates()) {
    SCOPED_TRACE(candidate.name());
    const auto backend = [&] { return make_cpu_backend({candidate.threads, candidate.isa}).value(); };
    EXPECT_EQ(attend(backend(), c, {100, 1.0f}), attend(backend(), c, {}));
  }
}

// Bounds go with a block that is moved to a smaller tier.
TEST(SparseAttention, ChoosesAmongBlocksOfSeveralTiers) {
  const Shape& c = kShapes[3];
  const auto full = attend(make_ref_backend(), c, c.sparse);
  for (const Candidate& candidate : candidates()) {
    SCOPED_TRACE(candidate.name());
    const auto got = attend(make_cpu_backend({candidate.threads, candidate.isa}).value(), c, c.sparse, true);
    expect_close(got, full, 3e-2f, 3e-2f);
  }
}

}  // namespace
}  // namespace sluice::test
