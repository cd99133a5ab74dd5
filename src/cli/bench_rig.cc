#include "cli/bench_rig.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::cli {

Result<std::unique_ptr<BenchRig>> BenchRig::make(const ModelSpec& spec, const Weights& weights,
                                                 Backend& backend, EngineConfig config, const RigSizes& sizes) {
  config.max_sequences = sizes.max_batch;
  config.max_context = std::max(sizes.max_length, kLeastContext);
  // Room for all sequences at full length, in windowed layers too: depths are visited in any order.
  const DeviceInfo device = backend.info();
  const KvWish wish = kv_wish(spec, settled(config, device), backend, device);
  const KvLayout& layout = wish.layout;
  const size_t slots = layout.tiering.on()
                           ? size_t(sizes.max_batch) * size_t(layout.settled_blocks(layout.max_length)) +
                                 size_t(layout.peak_blocks(layout.max_length))
                           : size_t(sizes.max_batch) * size_t(layout.groups()) * size_t(layout.row_capacity());
  config.kv_bytes = slots * wish.block_bytes;
  auto steps = make_steps(spec, weights, backend, config);
  if (!steps) return std::move(steps).error();
  return std::unique_ptr<BenchRig>(new BenchRig(spec, backend, std::move(*steps), sizes));
}

BenchRig::BenchRig(const ModelSpec& spec, Backend& backend, ModelSteps steps, const RigSizes& sizes)
    : spec_(spec),
      backend_(backend),
      steps_(std::move(steps)),
      builder_(steps_.limits, steps_.kv.layout, steps_.cost),
      blocks_(steps_.kv.blocks, steps_.kv.layout.tiering),
      executor_(*steps_.runner, finished_) {
  for (Step& step : executor_.steps()) {
    builder_.reserve(step, *steps_.runner);
    step.plan.reserve(sizes.max_batch, 1);
  }
  tables_.reserve(size_t(sizes.max_batch));
  for (int s = 0; s < sizes.max_batch; ++s) {
    tables_.emplace_back(steps_.kv.layout);
    CHECK(blocks_.tiered() || tables_.back().grow(blocks_, steps_.kv.layout.max_length));
    Request wish;
    wish.sampling.temperature = 0;
    wish.max_tokens = steps_.kv.layout.max_length + 1;  // its ids have room for all
    wish.ignore_eos = true;
    auto& sequence = *sequences_.emplace_back(
        std::make_unique<LiveRequest>(std::move(wish), std::span<const int32_t>(), nullptr));
    sequence.slot = s;
    sequence.table = &tables_.back();
  }
}

BenchRig::~BenchRig() = default;

// Ordinary ids all over the vocabulary, so that embedding rows come from memory.
int32_t BenchRig::made_up_id(int position) const {
  return int32_t((uint32_t(position) * 7919u + 257u) % uint32_t(spec_.vocab));
}

void BenchRig::forget_all_but(LiveRequest& sequence, int length) const {
  sequence.ids.clear();
  for (int i = 0; i < length; ++i) sequence.ids.push_back(made_up_id(i));
}

// With tiers, blocks are converted on the way, as a scheduler would have it.
void BenchRig::fill(int depth) {
  if (!blocks_.tiered()) {
    if (depth > 0) prefill(0, depth);
    return;
  }
  for (BlockTable& table : tables_) table.clear(blocks_);
  for (int done = 0; done < depth;) {
    const int count = std::min(depth - done, steps_.limits.max_tokens);
    prefill(done, count);
    done += count;
    age(tables_[0], done);
  }
}

void BenchRig::age(BlockTable& table, int landed) {
  const KvLayout& layout = steps_.kv.layout;
  for (bool all = false; !all;) {
    std::vector<BlockMove> moves;
    moves.reserve(size_t(layout.most_moves()));
    all = table.convert(blocks_, layout.tiering, landed, moves, layout.most_moves());
    if (moves.empty()) {
      CHECK(all, "the pool has no place for a conversion");
      return;
    }
    Step& step = next_step();
    step.plan.moves = std::move(moves);
    launch(step);
    finish(0);
  }
}

RunTime BenchRig::prefill(int depth, int tokens) {
  LiveRequest& sequence = *sequences_[0];
  forget_all_but(sequence, depth + tokens);
  CHECK(tables_[0].grow(blocks_, depth + tokens), "the pool has room for the longest");
  const TimeNs start = now_ns();
  for (int done = 0; done < tokens;) {
    Step& step = next_step();
    const int count = std::min(tokens - done, steps_.limits.max_tokens);
    step.plan.entries.push_back({&sequence, depth + done, count, done + count == tokens});
    done += count;
    launch(step);
  }
  return finish(start);
}

void BenchRig::spread_depth(int batch, int depth) {
  const KvPool& pool = steps_.runner->pool();
  const size_t used = size_t(steps_.kv.layout.blocks_for(depth));
  std::array<std::vector<std::pair<int32_t, int32_t>>, kKvTiers> copies;
  for (int s = 1; s < batch; ++s) {
    BlockTable& table = tables_[size_t(s)];
    for (int length = 0; blocks_.tiered() && length < depth;) {
      length = std::min(depth, length + steps_.limits.max_tokens);
      CHECK(table.grow(blocks_, length), "the pool has room for all sequences");
      age(table, length);
    }
    for (int group = 0; group < steps_.kv.layout.groups(); ++group) {
      for (size_t b = 0; b < used; ++b) {
        const KvRef from = blocks_.ref(tables_[0].row(group)[b]), to = blocks_.ref(table.row(group)[b]);
        CHECK(kv_tier(from) == kv_tier(to));
        copies[size_t(kv_tier(from))].emplace_back(kv_index(from), kv_index(to));
      }
    }
  }
  for (int tier = 0; tier < kKvTiers; ++tier)
    backend_.copy_blocks(pool.data, pool.block_bytes / kSlotUnits * size_t(kv_units(KvTier(tier))),
                         copies[size_t(tier)]);
  backend_.finish_step();
}

// Two steps are under way: while one runs, the next is planned, its ids still on the device.
RunTime BenchRig::decode(int batch, int depth, int tokens) {
  for (int s = 0; s < batch; ++s) {
    forget_all_but(*sequences_[size_t(s)], depth + 1);
    CHECK(tables_[size_t(s)].grow(blocks_, depth + tokens), "the pool has room for all sequences");
  }
  const TimeNs start = now_ns();
  for (int i = 0; i < tokens; ++i) {
    Step& step = next_step();
    for (int s = 0; s < batch; ++s)
      step.plan.entries.push_back({sequences_[size_t(s)].get(), depth + i, 1, true});
    launch(step);
  }
  return finish(start);
}

Step& BenchRig::next_step() {
  for (;;) {
    if (Step* step = executor_.free_step()) {
      step->plan.reset();
      step->record = {};
      return *step;
    }
    const uint32_t heard = finished_.count();
    if (Step* step = executor_.finished())
      take_back(*step);
    else
      finished_.wait(heard);
  }
}

void BenchRig::launch(Step& step) {
  for (const PlanEntry& e : step.plan.entries) step.plan.tokens += e.count;
  builder_.build(step, blocks_);
  executor_.launch(&step);
}

void BenchRig::take_back(Step& step) {
  for (size_t i = 0; i < step.plan.entries.size(); ++i)
    if (const auto results = step.results_of(i); !results.empty())
      step.plan.entries[i].sequence->ids.push_back(results[0].id);
  blocks_.land(step.plan.moves);
  // The first step's wait is for whatever came before.
  if (run_.steps > 0) run_.idle_s += seconds(step.record.idle_ns);
  run_.device_s += seconds(step.record.execute_ns);
  run_.replayed += step.record.graph == GraphUse::hit;
  ++run_.steps;
  executor_.recycle(&step);
}

RunTime BenchRig::finish(TimeNs start) {
  while (executor_.in_flight() > 0) {
    const uint32_t heard = finished_.count();
    if (Step* step = executor_.finished())
      take_back(*step);
    else
      finished_.wait(heard);
  }
  run_.wall_s = seconds(now_ns() - start);
  return std::exchange(run_, {});
}

}  // namespace sluice::cli
