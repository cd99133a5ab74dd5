// A device behind the host for tests: the reference backend on a thread of its own, which runs what was
// enqueued in order. It records ops and replays them with the arguments they were recorded with, as a card
// does: what is not in device memory (or staged for the slot) is what it was then, so a step that moved its
// arrays gives wrong answers.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tensor/backend.h"

namespace sluice {

class ReplayingBackend : public Backend {
 public:
  ReplayingBackend() : thread_([this] { run_device(); }) {}
  ~ReplayingBackend() override {
    enqueue({});  // empty: the end
    thread_.join();
  }

  int recorded() const { return int(records_.size()); }
  int replayed() const { return replayed_; }
  // Most steps that were enqueued and not done at any time.
  int most_under_way() const { return most_under_way_.load(); }

  DeviceInfo info() const override { return inner_->info(); }
  Buffer alloc(size_t bytes) override { return inner_->alloc(bytes); }
  void free(void* data, size_t bytes) override { inner_->free(data, bytes); }
  void copy_in(void* to, const void* from, size_t bytes) override { inner_->copy_in(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { inner_->copy_out(to, from, bytes); }
  Status reserve(const WorkspaceShape& shape) override { return inner_->reserve(shape); }
  DType activation_dtype() const override { return inner_->activation_dtype(); }
  DType kv_dtype() const override { return inner_->kv_dtype(); }
  size_t kv_block_bytes(const KvGeometry& g) const override { return inner_->kv_block_bytes(g); }
  Result<Weight> pack(std::span<const PackSource> sources) override { return inner_->pack(sources); }

  void begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) override {
    op([=, this, g = &geometry] { inner_->begin_step(batch, *g, heads); });
  }
  void embed(const EmbedArgs& a) override {
    op([this, table = &a.table, batch = a.batch, scale = a.scale, out = a.out] {
      inner_->embed({*table, batch, scale, out});
    });
  }
  void rms_norm(const RmsNormArgs& a) override {
    op([=, this] { inner_->rms_norm(a); });
  }
  void add_rms_norm(const AddRmsNormArgs& a) override {
    op([=, this] { inner_->add_rms_norm(a); });
  }
  void linear(const LinearArgs& a) override {
    op([this, a] { inner_->linear(a); });
  }
  void rope_store_kv(const RopeStoreArgs& a) override {
    op([this, batch = a.batch, a] {
      inner_->rope_store_kv({a.qkv, batch, a.geometry, a.kv, a.heads, a.q_norm, a.k_norm, a.norm_eps, a.rotary,
                             a.inv_freq, a.rope_magnitude});
    });
  }
  void attention(const AttentionArgs& a) override {
    op([this, batch = a.batch, a] {
      inner_->attention({a.q, batch, a.geometry, a.kv, a.heads, a.scale, a.window, a.softcap, a.out});
    });
  }
  void act_mul(const ActMulArgs& a) override {
    op([=, this] { inner_->act_mul(a); });
  }
  void gather_rows(const Tensor& x, const int32_t* index, const Tensor& out) override {
    op([=, this] { inner_->gather_rows(x, index, out); });
  }
  // The wishes are those staged for the slot, whatever a.rows says.
  void sample(const SampleArgs& a) override {
    op([=, this] {
      SampleArgs now = a;
      now.rows = std::span(staged_[size_t(a.slot)]).subspan(size_t(a.first_row), size_t(a.logits.rows));
      inner_->sample(now);
    });
  }
  void copy_blocks(std::byte* pool, size_t bytes,
                   std::span<const std::pair<int32_t, int32_t>> from_to) override {
    CHECK(!recording_, "copies differ from step to step");
    op([this, pool, bytes, copies = std::vector(from_to.begin(), from_to.end())] {
      inner_->copy_blocks(pool, bytes, copies);
    });
  }
  void finish_step() override {}

  // At once, while the step before may be running: nothing of a step under way may be touched by it.
  void stage(int slot, std::span<const Upload> uploads, std::span<const SampleRow> rows,
             int padded_rows) override {
    CHECK(done_[size_t(slot)].exchange(false), "a slot is used again only when its step is done");
    Backend::stage(slot, uploads, rows, padded_rows);
    staged_[size_t(slot)].assign(rows.begin(), rows.end());
    staged_[size_t(slot)].resize(size_t(padded_rows));
  }
  void submit_step(int slot) override {
    most_under_way_.store(std::max(most_under_way_.load(), ++under_way_));
    enqueue([this, slot] {
      --under_way_;
      done_[size_t(slot)].store(true);
    });
  }
  bool step_done(int slot) override { return done_[size_t(slot)].load(); }

  bool can_record() const override { return true; }
  void begin_recording(int key) override { recording_ = &records_[key]; }
  void end_recording(int key) override {
    recording_ = nullptr;
    run_record(key);
  }
  bool replay(int key) override {
    if (!records_.contains(key)) return false;
    ++replayed_;
    run_record(key);
    return true;
  }

 protected:
  using Op = std::function<void()>;
  // Behind all that was asked for before.
  void enqueue(Op f) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(f));
    wake_.notify_one();
  }

 private:
  void op(Op f) {
    if (recording_)
      recording_->push_back(std::move(f));
    else
      enqueue(std::move(f));
  }
  void run_record(int key) {
    enqueue([record = &records_.at(key)] {
      for (const Op& f : *record) f();
    });
  }
  void run_device() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return !queue_.empty(); });
      const Op f = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!f) return;
      f();
    }
  }

  std::unique_ptr<Backend> inner_ = make_ref_backend();
  std::array<std::atomic<bool>, 2> done_{true, true};
  std::array<std::vector<SampleRow>, 2> staged_;
  std::map<int, std::vector<Op>> records_;  // nodes stay where they are
  std::vector<Op>* recording_ = nullptr;
  int replayed_ = 0;
  std::atomic<int> under_way_{0}, most_under_way_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Op> queue_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sluice
