// A scripted model for tests. It keeps a cache of token ids in blocks, reads it back through the tables, and
// answers each row with a hash of everything the row may see. So a wrong table, position, placeholder or a
// block that was taken away too early changes the answer, and the right answer can be computed from the tokens
// alone (expected_next). A block of a small tier loses nothing here, but where its place overlaps another's,
// one of them does.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/step_runner.h"
#include "kv/block_table.h"

namespace sluice {

class FakeRunner final : public StepRunner {
 public:
  // Where a step is computed: in launch, as on the CPU, or by a thread of the fake's own, as on a card.
  enum class Device { in_launch, behind_the_host };

  FakeRunner(const KvLayout& layout, int blocks, int slots, int vocab, Device device = Device::in_launch,
             int host_slots = 0)
      : layout_(layout),
        vocab_(vocab),
        host_(size_t(host_slots) * kSlotUnits * size_t(layout.block_tokens), -1),
        cache_(size_t(blocks) * kSlotUnits * size_t(layout.block_tokens), -1),
        last_ids_(size_t(slots), -1) {
    if (device == Device::behind_the_host) device_ = std::thread([this] { run_device(); });
  }
  ~FakeRunner() override {
    if (!device_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      quit_ = true;
      wake_.notify_all();
    }
    device_.join();
  }

  // Steps run freely until hold(); then each release() lets one pass.
  void hold() {
    std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release(int steps = 1) {
    std::lock_guard lock(mutex_);
    passes_ += steps;
    wake_.notify_all();
  }
  void let_go() {
    std::lock_guard lock(mutex_);
    held_ = false;
    wake_.notify_all();
  }
  // Blocks until `count` steps have been launched since construction (the warm-up's included).
  void await_begun(int count) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return begun_ >= count; });
  }
  int begun() {
    std::lock_guard lock(mutex_);
    return begun_;
  }
  // Steps that the device has computed.
  int computed() {
    std::lock_guard lock(mutex_);
    return computed_;
  }
  // Times that the executor has asked whether a step is done.
  int looks() const { return looks_.load(); }

  void launch(Step& step) override {
    std::unique_lock lock(mutex_);
    step.record.graph = graph_use(step);
    under_way_[begun_ % kStepsInFlight] = &step;
    ++begun_;
    wake_.notify_all();
    if (device_.joinable()) return;
    wake_.wait(lock, [&] { return may_pass(); });
    compute_next(lock);
  }
  std::byte* host_blocks() override { return reinterpret_cast<std::byte*>(host_.data()); }
  static size_t slot_bytes(const KvLayout& layout) {
    return size_t(kSlotUnits) * size_t(layout.block_tokens) * sizeof(int32_t);
  }
  // The next call of done finds a bug.
  void fail_next_look() { fails_.store(true); }

  bool done(Step& step) override {
    ++looks_;
    CHECK(!fails_.load(), "the device is gone");
    std::lock_guard lock(mutex_);
    const Step* last = computed_ ? under_way_[(computed_ - 1) % kStepsInFlight] : nullptr;
    return begun_ == computed_ || last == &step;
  }

  // The token that follows `ids`, for a request without penalties, bans or biases.
  static int32_t expected_next(std::span<const int32_t> ids, const std::vector<int>& windows, int vocab,
                               float temperature, uint64_t seed) {
    uint64_t h = 0;
    for (int window : windows) {
      const size_t from = window && ids.size() > size_t(window) ? ids.size() - size_t(window) : 0;
      for (size_t i = from; i < ids.size(); ++i) h = mix(h, uint64_t(ids[i]));
    }
    return finish(h, vocab, temperature, seed, ids.size());
  }

 private:
  bool may_pass() const { return !held_ || passes_ > 0; }

  void run_device() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return quit_ || (computed_ < begun_ && may_pass()); });
      if (quit_) return;
      compute_next(lock);
    }
  }

  // Without the lock while it computes: only the step under way is touched, and memory of this thread alone.
  void compute_next(std::unique_lock<std::mutex>& lock) {
    Step& step = *under_way_[computed_ % kStepsInFlight];
    if (held_) --passes_;
    lock.unlock();
    compute(step);
    lock.lock();
    ++computed_;
  }

  void compute(Step& step) {
    const BatchInput& b = step.batch;
    for (const auto* moves : {&step.plan.copies, &step.plan.moves})
      for (const auto& [from, to] : *moves) move(from, to);
    for (const HostMove& host : step.plan.host_moves) copy_host(host);
    const int rows = int(step.rows.size());  // what the batch has beyond is padding
    for (int row = 0; row < b.tokens; ++row)
      if (b.kv_lengths[b.row_sequence[row]] > 0) store(b, row);
    for (int i = 0; i < rows; ++i) step.results[size_t(i)] = answer(b, b.logit_index[i], step.rows[size_t(i)]);
    for (int i = 0; i < rows; ++i)
      if (step.rows[size_t(i)].slot >= 0)
        last_ids_[size_t(step.rows[size_t(i)].slot)] = step.results[size_t(i)].id;
  }

  GraphUse graph_use(const Step& step) {
    if (!step.replayable) return GraphUse::none;
    bool& seen = recorded_[size_t(step.batch.sequences * kStepsInFlight + step.slot)];
    return std::exchange(seen, true) ? GraphUse::hit : GraphUse::miss;
  }

  static uint64_t mix(uint64_t h, uint64_t v) {
    h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdull;
    return h ^ (h >> 33);
  }
  static int32_t finish(uint64_t h, int vocab, float temperature, uint64_t seed, uint64_t counter) {
    if (temperature > 0) h = mix(mix(h, seed), counter);
    return int32_t(h % uint64_t(vocab));
  }
  // A place has room for its tokens once per quarter of a slot; they stand in the first, and the others are
  // emptied when it is written to.
  int32_t* place(KvRef ref) { return cache_.data() + kv_first_unit(ref) * layout_.block_tokens; }
  void empty_rest(KvRef ref) {
    std::fill_n(place(ref) + layout_.block_tokens, (kv_units(kv_tier(ref)) - 1) * layout_.block_tokens, -1);
  }
  void move(KvRef from, KvRef to) {
    std::copy_n(place(from), layout_.block_tokens, place(to));
    empty_rest(to);
  }
  void copy_host(const HostMove& move) {
    CHECK(kv_tier(move.block) == kv_tier(move.place), "a block keeps its tier");
    int32_t* const there = host_.data() + kv_first_unit(move.place) * layout_.block_tokens;
    const int count = kv_units(kv_tier(move.block)) * layout_.block_tokens;
    std::copy_n(move.to ? there : place(move.block), count, move.to ? place(move.block) : there);
  }
  KvRef ref(const BatchInput& b, int group, int sequence, int position) const {
    const KvRef ref = b.tables[group][sequence * b.table_stride + position / layout_.block_tokens];
    CHECK(ref >= 0, "a row reads a block that is not there");
    return ref;
  }
  int32_t& cell(const BatchInput& b, int group, int sequence, int position) {
    return place(ref(b, group, sequence, position))[position % layout_.block_tokens];
  }
  void store(const BatchInput& b, int row) {
    int32_t id = b.token_ids[row];
    if (id < 0) id = last_ids_[size_t(-1 - id)];
    CHECK(id >= 0 && id < vocab_);
    for (int g = 0; g < b.groups; ++g) {
      const KvRef to = ref(b, g, b.row_sequence[row], b.positions[row]);
      CHECK(kv_tier(to) == KvTier::full, "a row is written to a block of a small tier");
      cell(b, g, b.row_sequence[row], b.positions[row]) = id;
      empty_rest(to);
    }
  }
  SampleResult answer(const BatchInput& b, int row, const SampleRow& wish) {
    const int s = b.row_sequence[row], position = b.positions[row];
    uint64_t h = 0;
    for (int g = 0; g < b.groups; ++g) {
      const int window = layout_.windows[size_t(g)];
      for (int p = window ? std::max(0, position - window + 1) : 0; p <= position; ++p)
        h = mix(h, uint64_t(cell(b, g, s, p)));
    }
    if (wish.history)
      for (int i = 0; i < wish.history_total; ++i) h = mix(h, uint64_t(wish.history[i]));
    SampleResult r;
    r.id = wish.target_id >= 0 ? wish.target_id : finish(h, vocab_, wish.temperature, wish.seed, wish.counter);
    for (int i = 0; i < wish.banned_count; ++i)
      if (wish.banned_ids[i] == r.id) r.id = (r.id + 1) % vocab_, i = -1;
    r.logprob = -float(h % 1000) / 100;
    r.rank = int(h % 7);
    r.top_count = std::max(0, wish.top_logprobs);
    for (int i = 0; i < r.top_count; ++i) r.top_ids[i] = i, r.top_logprobs[i] = -float(i);
    return r;
  }

  const KvLayout layout_;
  const int vocab_;
  std::vector<int32_t> host_;
  std::vector<int32_t> cache_;
  std::vector<int32_t> last_ids_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool held_ = false, quit_ = false;
  int passes_ = 0, begun_ = 0, computed_ = 0;
  std::array<Step*, kStepsInFlight> under_way_{};
  std::array<bool, 2048> recorded_{};
  std::atomic<int> looks_{0};
  std::atomic<bool> fails_{false};
  std::thread device_;  // last: it uses all of the above
};

}  // namespace sluice
