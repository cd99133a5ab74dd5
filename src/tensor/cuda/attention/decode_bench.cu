// Decode attention in a graph of many calls, as a step runs it, over pools larger than the L2: µs per layer,
// the bytes of keys and values (scales included), GB/s, and the share of the card's 4.56 TB/s.
//
//     cuda_attention_bench [ahead]                many shapes in bf16; `ahead`: each reads ahead (decode.h)
//     cuda_attention_bench tiers                  by precision, batch and context; "full": bf16 in a pool with
//     tiers
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/kv_tiers/kv_tiers.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {
namespace {

using test::DeviceBytes;

constexpr double kCeiling = 4.56e12;  // bytes a second, measured (shared/reference/h200.md)

struct Shape {
  const char* name;
  int heads, kv_heads, head_dim, window;
  std::vector<int> lengths;
  bool tiered = false;
  std::vector<KvTier> tiers = {KvTier::full};  // of the blocks before the newest `newest`, in stretches alike
};

// Moves a few random blocks from the last slots to the first places of each tier, as a step would, and copies
// them to the others.
void fill_tiers(const KvGeometry& g, const DeviceBytes& pool, int slots, const std::vector<KvRef>& refs) {
  constexpr size_t kSources = 4;
  const size_t quarter = slot_bytes(g) / kSlotUnits;
  const auto at = [&](KvRef ref) { return pool.as<std::byte>() + size_t(kv_first_unit(ref)) * quarter; };
  std::array<std::vector<KvRef>, kKvTiers> places;
  for (const KvRef ref : refs) places[size_t(kv_tier(ref))].push_back(ref);
  std::vector<KvMove> moves;
  for (const auto& of_tier : places)
    for (size_t i = 0; i < std::min(kSources, of_tier.size()); ++i)
      moves.push_back({slots - 1 - int(i), of_tier[i]});
  const DeviceBytes on_card = test::upload(moves);
  BatchInput batch;
  batch.moves = on_card.as<KvMove>();
  batch.move_count = int(moves.size());
  move_blocks(test::context(), {batch, g, pool.as<std::byte>(), slot_bytes(g)});
  test::wait();
  for (const auto& of_tier : places)
    for (size_t i = kSources; i < of_tier.size(); ++i)
      CUDA_CHECK(cudaMemcpyAsync(at(of_tier[i]), at(of_tier[i % kSources]),
                                 quarter * size_t(kv_units(kv_tier(of_tier[i]))), cudaMemcpyDeviceToDevice));
  CUDA_CHECK(cudaDeviceSynchronize());
}

void measure(const Shape& s, bool ahead = false) {
  const int kBlock = s.tiered ? kStripTokens : 16;
  const auto tier_of = [&](int block, int length) {
    const int blocks = (length + kBlock - 1) / kBlock;
    return s.tiers[size_t(block) * s.tiers.size() / size_t(blocks)];
  };
  const int n = int(s.lengths.size());
  double bytes = 0;
  int stride = 0, blocks = 0, units = 0;
  for (int length : s.lengths) {
    const int of_sequence = (length + kBlock - 1) / kBlock;
    for (int b = 0; b < of_sequence; ++b) {
      const int seen =
          std::min(length, (b + 1) * kBlock) - std::max(b * kBlock, s.window ? length - s.window : 0);
      const KvTier tier = tier_of(b, length);
      units += kv_units(tier);
      if (seen > 0)
        bytes += s.kv_heads * (tier == KvTier::full ? 4.0 * s.head_dim * seen : strip_bytes(tier, s.head_dim));
    }
    blocks += of_sequence;
    stride = std::max(stride, of_sequence);
  }
  // Layers of one pool, until a round is beyond the L2.
  const int layers = int(std::clamp(300e6 / std::max(bytes, 1.0), 2.0, std::max(2.0, 20e9 / bytes)));
  const KvGeometry g{kBlock, std::min(layers, 200), s.kv_heads, s.head_dim, DType::bf16, s.tiered};
  const KvRows rows(g);
  const int slots = s.tiered ? units / kSlotUnits + 16 : blocks;
  DeviceBytes pool(size_t(slots) * slot_bytes(g));
  static const DeviceBytes values = test::upload_bf16(test::random_bf16(1 << 20, 2));
  for (size_t at = 0; at < pool.bytes(); at += values.bytes())
    CUDA_CHECK(cudaMemcpy(pool.as<std::byte>() + at, values.data(), std::min(values.bytes(), pool.bytes() - at),
                          cudaMemcpyDeviceToDevice));
  // Places of each tier, shuffled.
  std::array<std::vector<KvRef>, kKvTiers> places;
  for (int length : s.lengths)
    for (int b = 0; b < (length + kBlock - 1) / kBlock; ++b) places[size_t(tier_of(b, length))].push_back(0);
  std::vector<KvRef> refs;
  std::vector<int32_t> table(size_t(n * stride), -1), starts;
  std::mt19937 rng(1);
  for (int tier = 0, slot = 0; tier < kKvTiers; ++tier) {
    auto& of_tier = places[size_t(tier)];
    const int per_slot = kSlotUnits / kv_units(KvTier(tier));
    for (size_t i = 0; i < of_tier.size(); ++i) of_tier[i] = kv_ref(KvTier(tier), slot * per_slot + int(i));
    slot += (int(of_tier.size()) + per_slot - 1) / per_slot;
    std::shuffle(of_tier.begin(), of_tier.end(), rng);
    refs.insert(refs.end(), of_tier.begin(), of_tier.end());
  }
  if (s.tiered) kv_tiers_prepare(g), fill_tiers(g, pool, slots, refs);
  for (int i = 0; i <= n; ++i) starts.push_back(i);
  for (int i = 0; i < n; ++i)
    for (int b = 0; b < (s.lengths[size_t(i)] + kBlock - 1) / kBlock; ++b) {
      auto& of_tier = places[size_t(tier_of(b, s.lengths[size_t(i)]))];
      table[size_t(i * stride + b)] = of_tier.back(), of_tier.pop_back();
    }
  const DeviceBytes d_table = test::upload(table), d_starts = test::upload(starts),
                    d_lengths = test::upload(s.lengths);
  BatchInput batch;
  batch.tokens = batch.sequences = batch.one_row_sequences = n;
  batch.row_starts = d_starts.as<int32_t>();
  batch.kv_lengths = d_lengths.as<int32_t>();
  batch.table_stride = stride;
  batch.tables[0] = d_table.as<int32_t>();

  const int ctas = decode_prepare(test::context(), g, s.heads);
  const DeviceBytes entries(sizeof(DecodeEntry) * (kMaxSequences + 1)),
      shares(sizeof(DecodeShare) * size_t(ctas)), pieces(decode_scratch_bytes(g, s.heads, ctas));
  DecodePlan plan{entries.as<DecodeEntry>(), shares.as<DecodeShare>(), ctas, s.window};
  const DeviceBytes before(size_t(n * stride) * sizeof(int32_t));
  if (s.tiered) plan.before = before.as<int32_t>(), plan.before_stride = stride;
  const int64_t columns = int64_t(s.heads) * s.head_dim;
  const DeviceBytes q = test::upload_bf16(test::random_bf16(size_t(n * columns), 1)),
                    out(size_t(n * columns) * 2);
  const auto make_plan = [&] {
    make_plans(test::context(), batch, {.kv_heads = s.kv_heads, .block_tokens = kBlock}, std::span(&plan, 1),
               {});
  };
  make_plan();
  const float plan_us = s.tiered ? 1000 * test::graph_ms(8, 9, [&](int) { make_plan(); }) : 0;
  const float us = 1000 * test::graph_ms(std::max(g.layers_per_group, 8), 9, [&](int i) {
                     const AttentionArgs args{test::bf16_tensor(q.data(), n, columns),
                                              batch,
                                              g,
                                              {pool.as<std::byte>(), slot_bytes(g), i % g.layers_per_group, 0},
                                              s.heads,
                                              0.1f,
                                              s.window,
                                              0,
                                              test::bf16_tensor(out.data(), n, columns)};
                     decode(test::context(), args, plan, pieces.as<PieceColumn>(), ahead && i > 0);
                   });
  std::printf(
      "%-28s %2d/%d x %3d  %8.2f us  %8.2f MB  floor %7.2f us  %6.0f GB/s  %3.0f %%  (%d CTAs, %d layers, plan "
      "%.1f us)\n",
      s.name, s.heads, s.kv_heads, s.head_dim, us, bytes / 1e6, bytes / kCeiling * 1e6, bytes / us / 1e3,
      bytes / us * 1e6 / kCeiling * 100, ctas, g.layers_per_group, double(plan_us));
  std::fflush(stdout);
}

std::vector<int> n_of(int n, int length) { return std::vector<int>(size_t(n), length); }

void measure_one(std::string_view precision, int batch, int length) {
  std::vector<KvTier> tiers = {KvTier::full};
  for (const KvTier tier : {KvTier::int8, KvTier::fp8, KvTier::int4})
    if (precision == kv_tier_name(tier)) tiers = {tier};
  measure({"one", 32, 8, 128, 0, n_of(batch, length), precision != "bf16", tiers});
}

void measure_tiers() {
  using enum KvTier;
  const std::pair<const char*, std::vector<KvTier>> kinds[] = {
      {"bf16", {full}}, {"full", {full}}, {"int8", {int8}}, {"fp8", {fp8}}, {"int4", {int4}}};
  for (const int batch : {1, 8, 32, 128})
    for (const int length : {1024, 8192, 32768})
      for (const auto& [name, tiers] : kinds) {
        char what[40];
        std::snprintf(what, sizeof what, "%s %d x %d", name, batch, length);
        measure({what, 32, 8, 128, 0, n_of(batch, length), name[0] != 'b', tiers});
      }
  // An aged context: an eighth int8, the newest 64th in full.
  std::vector<KvTier> aged(64, int4);
  std::fill(aged.begin() + 55, aged.end() - 1, int8), aged.back() = full;
  for (const int batch : {1, 32}) measure({"aged x 32768", 32, 8, 128, 0, n_of(batch, 32768), true, aged});
}

std::vector<int> mixture() {
  std::vector<int> lengths(128, 500);
  lengths[50] = 32768;
  return lengths;
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) {
  using namespace sluice::cuda;
  const std::string_view wish = argc > 1 ? argv[1] : "";
  const bool ahead = wish == "ahead";
  if (wish == "tiers") return measure_tiers(), 0;
  if (wish == "one" && argc == 5) return measure_one(argv[2], std::atoi(argv[3]), std::atoi(argv[4])), 0;
  const auto at = [&](const char* name, int heads, int kv_heads, int head_dim, int window,
                      std::vector<int> lengths) {
    measure({name, heads, kv_heads, head_dim, window, std::move(lengths)}, ahead);
  };
  at("1 x 16", 32, 8, 128, 0, {16});
  at("1 x 512", 32, 8, 128, 0, {512});
  at("1 x 4096", 32, 8, 128, 0, {4096});
  at("1 x 16384", 32, 8, 128, 0, {16384});
  at("1 x 32768", 32, 8, 128, 0, {32768});
  at("8 x 576", 32, 8, 128, 0, n_of(8, 576));
  at("32 x 576", 32, 8, 128, 0, n_of(32, 576));
  at("128 x 576", 32, 8, 128, 0, n_of(128, 576));
  at("256 x 576", 32, 8, 128, 0, n_of(256, 576));
  at("32 x 8192", 32, 8, 128, 0, n_of(32, 8192));
  at("32768 and 127 x 500", 32, 8, 128, 0, mixture());
  at("1 x 4096", 64, 8, 128, 0, {4096});
  at("128 x 576", 64, 8, 128, 0, n_of(128, 576));
  at("1 x 512", 9, 3, 64, 0, {512});
  at("128 x 576", 9, 3, 64, 0, n_of(128, 576));
  at("128 x 576", 32, 8, 64, 0, n_of(128, 576));
  at("1 x 4096, window 512", 4, 1, 256, 512, {4096});
  at("128 x 2000, window 512", 4, 1, 256, 512, n_of(128, 2000));
  at("128 x 2000", 4, 1, 256, 0, n_of(128, 2000));
  // The plan's own kernel.
  const DeviceBytes lengths = test::upload(n_of(128, 576)), entries(sizeof(DecodeEntry) * (kMaxSequences + 1)),
                    shares(sizeof(DecodeShare) * 264);
  std::vector<int32_t> starts;
  for (int i = 0; i <= 128; ++i) starts.push_back(i);
  const DeviceBytes d_starts = test::upload(starts);
  sluice::BatchInput batch;
  batch.sequences = batch.one_row_sequences = batch.tokens = 128;
  batch.row_starts = d_starts.as<int32_t>();
  batch.kv_lengths = lengths.as<int32_t>();
  const DecodePlan plan{entries.as<DecodeEntry>(), shares.as<DecodeShare>(), 264, 0};
  std::printf("plan of 128 sequences: %.2f us\n", 1000 * test::graph_ms(50, 9, [&](int) {
                                                    make_plans(test::context(), batch, {.kv_heads = 8},
                                                               std::span(&plan, 1), {});
                                                  }));
}
