// Blocks moved to small tiers, and attention over any mixture of them, against ref/.
#include "tensor/kv_tier.h"

#include <numeric>

#include "tensor/ops_fixture.h"

namespace sluice::test {
namespace {

struct TierShape {
  Heads heads;
  int block_tokens;
  std::vector<Part> parts;
  AttentionSettings settings;
};

constexpr int kBlocks = 24;  // of a sequence
constexpr int kSpare = 100;  // slots for blocks in small tiers

// Moves the whole blocks of each context to the tiers in turn, and where `twice`, on to the next ones. Places
// lie behind the slots of full blocks.
void move_to_tiers(Lab& lab, Step& step, const std::vector<Part>& parts, std::span<const KvTier> tiers,
                   bool twice) {
  int slot = kBlocks * int(parts.size());
  for (int hop = 0; hop <= int(twice); ++hop) {
    step.moves.clear();
    for (size_t s = 0; s < parts.size(); ++s) {
      for (int i = 0; i < parts[s].context / lab.geometry.block_tokens; ++i) {
        KvRef& ref = step.table(s)[size_t(i)];
        if (ref < 0) continue;
        const KvTier tier = tiers[(size_t(i) + size_t(hop)) % tiers.size()];
        const int per_slot = kSlotUnits / kv_units(tier);
        const KvRef to = kv_ref(tier, slot++ * per_slot + i % per_slot);
        step.moves.push_back({ref, to});
        ref = to;
      }
    }
    const BatchInput batch = step.batch();
    lab.backend->move_blocks({batch, lab.geometry, lab.kv.pool, lab.kv.block_bytes});
  }
  step.moves.clear();
}

void fill_contexts(Lab& lab, const TierShape& c) {
  std::vector<float> inv_freq(size_t(c.heads.head_dim / 2), 0.01f);
  for (size_t s = 0; s < c.parts.size(); ++s) {
    if (c.parts[s].context == 0) continue;
    const Step fill({{0, c.parts[s].context}}, {int(s)}, c.block_tokens, 0, kBlocks);
    const BatchInput batch = fill.batch();
    auto qkv = random_values(size_t(batch.tokens * c.heads.width()), uint32_t(s) + 50);
    lab.backend->begin_step(batch, lab.geometry, c.heads.heads);
    lab.backend->rope_store_kv({view(qkv, batch.tokens, c.heads.width()), batch, lab.geometry, lab.kv,
                                c.heads.heads, nullptr, nullptr, 1e-6f, c.heads.head_dim / 2 * 2,
                                inv_freq.data(), 1.0f});
  }
}

// The step's attention after all whole blocks of the contexts were moved. No tiers: none is.
std::vector<float> attend(std::unique_ptr<Backend> backend, const TierShape& c, std::span<const KvTier> tiers,
                          bool twice) {
  const KvGeometry g{c.block_tokens, 2, c.heads.kv_heads, c.heads.head_dim, DType::f16, true};
  Lab lab(std::move(backend), g, kBlocks * int(c.parts.size()) + kSpare, 1);
  fill_contexts(lab, c);
  std::vector<int> ids(c.parts.size());
  std::iota(ids.begin(), ids.end(), 0);
  Step step(c.parts, ids, c.block_tokens, c.settings.window, kBlocks);
  if (!tiers.empty()) move_to_tiers(lab, step, c.parts, tiers, twice);
  auto qkv = random_values(size_t(step.batch().tokens * c.heads.width()), 77);
  return store_and_attend(lab, step, c.heads, qkv, c.settings);
}

float mean_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(a[i] - b[i]);
  return float(sum / double(a.size()));
}

struct TierCase {
  std::vector<KvTier> tiers;
  bool twice;
  float most;  // mean distance from full precision
};

using enum KvTier;
const TierCase kCases[] = {{{int8}, false, 2e-3f},
                           {{int4}, false, 2e-2f},
                           {{full, int8, int4}, false, 2e-2f},
                           {{int8, int4}, true, 2e-2f},
                           {{int4, full, int8}, true, 2e-2f}};
const TierShape kShapes[] = {{{9, 3, 64}, 64, {{400, 1}, {130, 7}, {1000, 40}}, {}},
                             {{4, 1, 256}, 32, {{400, 1}, {70, 33}}, {}},
                             {{5, 1, 80}, 16, {{333, 2}}, {}},
                             {{3, 1, 20}, 64, {{256, 1}}, {}},
                             {{4, 1, 64}, 64, {{900, 1}}, {300, 0}}};

TEST(KvTiers, AttentionReadsThemAll) {
  for (const TierShape& c : kShapes) {
    const auto full_precision = attend(make_ref_backend(), c, {}, false);
    for (const TierCase& t : kCases) {
      SCOPED_TRACE(testing::Message() << kv_tier_name(t.tiers[0]) << ", " << t.tiers.size()
                                      << " tiers, heads of " << c.heads.head_dim << ", blocks of "
                                      << c.block_tokens);
      const auto want = attend(make_ref_backend(), c, t.tiers, t.twice);
      EXPECT_GE(mean_distance(want, full_precision), 1e-5f) << "nothing was rounded";
      EXPECT_LE(mean_distance(want, full_precision), t.most);
      for (const Candidate& candidate : candidates()) {
        SCOPED_TRACE(candidate.name());
        const auto got = attend(make(candidate), c, t.tiers, t.twice);
        // A value halfway between two steps of a scale may go either way, so single elements may differ.
        EXPECT_LE(mean_distance(got, want), 1e-4f);
        expect_close(got, want, 2e-2f, 0);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
