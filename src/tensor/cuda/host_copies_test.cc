// Blocks to pinned host memory and back while steps run, through the backend as the engine uses it: two steps
// in flight, whose ops write to the blocks that were just saved.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {
namespace {

using enum KvTier;

constexpr size_t kStaged = 64 << 10;     // arrays of a step
constexpr int kSlots = 160, kPart = 40;  // of the pool, and of a quarter of it: large enough to take a while

class Card {
 public:
  explicit Card(bool time_copies = false)
      : backend_(std::move(make_cuda_backend({.time_copies = time_copies}).value())) {
    moves_ = backend_->alloc(kPart * sizeof(KvMove));
    staged_ = backend_->alloc(kStaged), staging_ = backend_->alloc_host(kStaged);
    CHECK(backend_->reserve({64, 8, 4096, 32, 128, 4096, 1024, 8, geometry_}).ok());
    pool_ = backend_->alloc_pool(slot() * kSlots, geometry_);
    host_ = backend_->alloc_host(slot() * kPart);
    for (int s = 0; s < kSlots; ++s) fill(s, uint32_t(s) + 1);
  }

  size_t slot() const { return slot_bytes(geometry_); }
  std::byte* host() { return host_.as<std::byte>(); }
  // A whole block of random values in a slot.
  void fill(int at, uint32_t seed) {
    const std::vector<float> values = test::random_bf16(slot() / 2, seed);
    std::vector<uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(), f32_to_bf16);
    backend_->copy_in(pool_.as<std::byte>() + size_t(at) * slot(), bits.data(), slot());
  }
  std::vector<std::byte> bytes(int first_slot, int slots) {
    std::vector<std::byte> b(slot() * size_t(slots));
    backend_->copy_out(b.data(), pool_.as<std::byte>() + size_t(first_slot) * slot(), b.size());
    return b;
  }

  struct Work {
    std::vector<HostCopy> copies{};
    std::vector<std::pair<int32_t, int32_t>> blocks{};  // copied within the pool by the step's ops
    int repeat = 1;
    std::vector<KvMove> moves{};
  };
  // Enqueues a step; the step two before it has ended then, and this one may not have begun.
  void launch(const Work& work) {
    const int at = next_++ % kStepsInFlight;
    wait(at);
    const Upload upload{staged_.data(), staging_.data(), staged_.bytes()};
    backend_->stage(at, {&upload, 1}, {}, 0);
    backend_->open_step(at);
    copies_[size_t(at)] = work.copies;
    backend_->copy_host({at, pool_.as<std::byte>(), copies_[size_t(at)]});
    if (!work.moves.empty()) {
      backend_->copy_in(moves_.data(), work.moves.data(), work.moves.size() * sizeof(KvMove));
      BatchInput batch;
      batch.moves = moves_.as<KvMove>(), batch.move_count = int(work.moves.size());
      backend_->move_blocks({batch, geometry_, pool_.as<std::byte>(), slot()});
    }
    for (int i = 0; i < work.repeat; ++i) backend_->copy_blocks(pool_.as<std::byte>(), slot(), work.blocks);
    backend_->submit_step(at);
    running_[size_t(at)] = true;
  }
  // Until the step launched last is done, or the one before it.
  StepTimes wait_last() { return wait((next_ + 1) % kStepsInFlight); }
  void wait_before_last() { wait(next_ % kStepsInFlight); }

  HostCopy copy(bool to_host, KvRef in_pool, KvRef on_host) {
    const size_t unit = slot() / kSlotUnits;
    return {size_t(kv_first_unit(in_pool)) * unit, host() + size_t(kv_first_unit(on_host)) * unit,
            size_t(kv_units(kv_tier(in_pool))) * unit, to_host};
  }

 private:
  StepTimes wait(int at) {
    if (!running_[size_t(at)]) return {};
    while (!backend_->step_done(at)) {
    }
    running_[size_t(at)] = false;
    return backend_->step_times(at);
  }

  const KvGeometry geometry_{kStripTokens, 2, 8, 128, DType::bf16, true};
  std::unique_ptr<Backend> backend_;
  Buffer moves_, staged_, staging_, pool_, host_;
  std::vector<HostCopy> copies_[kStepsInFlight];
  bool running_[kStepsInFlight] = {};
  int next_ = 0;
};

// From a quarter of the pool, whose slots begin at `first`, block by block to another.
std::vector<std::pair<int32_t, int32_t>> copied(int first, int to) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int i = 0; i < kPart; ++i) pairs.emplace_back(first + i, to + i);
  return pairs;
}

TEST(HostCopies, BlocksOfEveryPrecisionComeBackAsTheyWereWhileStepsRun) {
  for (const KvTier tier : {full, int8, fp8, int4}) {
    SCOPED_TRACE(kv_tier_name(tier));
    Card card;
    const int each = kSlotUnits / kv_units(tier), blocks = kPart;
    const auto place = [&](int slot, int i) { return kv_ref(tier, slot * each + i); };
    Card::Work convert, save, overwrite, restore;
    for (int i = 0; i < blocks; ++i) {
      convert.moves.push_back({i, place(kPart, i)});
      save.copies.push_back(card.copy(true, place(kPart, i), place(0, blocks - 1 - i)));
      restore.copies.push_back(card.copy(false, place(2 * kPart, i), place(0, blocks - 1 - i)));
    }
    overwrite.blocks = copied(0, kPart);
    card.launch(convert);
    card.wait_last();
    const auto before = card.bytes(kPart, kPart / each);
    card.launch(save);
    card.launch(overwrite);  // what was saved, at once
    card.wait_before_last();
    for (int i = 0; i < blocks; ++i) {
      const HostCopy& c = save.copies[size_t(i)];
      ASSERT_EQ(std::memcmp(c.host, before.data() + c.pool_offset - kPart * card.slot(), c.bytes), 0)
          << "block " << i << " is not in host memory once its step is done";
    }
    restore.blocks = copied(0, 3 * kPart);
    restore.repeat = 20;
    card.launch(restore);
    card.wait_last();
    EXPECT_EQ(card.bytes(2 * kPart, kPart / each), before);
    EXPECT_EQ(card.bytes(kPart, kPart), card.bytes(0, kPart)) << "the ops beside it did their work";
  }
}

TEST(HostCopies, WhatAStepWroteIsWhatTheNextSaves) {
  Card card;
  Card::Work slow, save;
  slow.blocks = copied(0, kPart);
  slow.repeat = 50;
  for (int i = 0; i < kPart; ++i) {
    slow.blocks.emplace_back(3 * kPart + i, kPart + i);  // last
    save.copies.push_back(card.copy(true, kPart + i, i));
  }
  card.launch(slow);
  card.launch(save);
  card.wait_last();
  const auto want = card.bytes(3 * kPart, kPart);
  EXPECT_EQ(std::memcmp(card.host(), want.data(), want.size()), 0);
}

// A place goes to the host in one step and is filled from there in the next.
TEST(HostCopies, AreMadeInOrder) {
  Card card;
  Card::Work first, second;
  const auto want = card.bytes(0, kPart / 2);
  for (int i = 0; i < kPart / 2; ++i) {
    first.copies.push_back(card.copy(true, i, i));
    second.copies.push_back(card.copy(false, kPart / 2 + i, i));
  }
  card.launch(first);
  card.launch(second);
  card.wait_last();
  EXPECT_EQ(card.bytes(kPart / 2, kPart / 2), want);
}

TEST(HostCopies, TheirTimeIsTold) {
  Card card;
  Card::Work save, none;
  for (int i = 0; i < kPart; ++i) save.copies.push_back(card.copy(true, i, i));
  card.launch(save);
  EXPECT_GT(card.wait_last().host_copy_ns, 0);
  card.launch(none);
  EXPECT_EQ(card.wait_last().host_copy_ns, 0);
}

TEST(HostCopies, TimesByDirectionAreToldToWhoAsksForThem) {
  Card asks(true), not_asked;
  Card::Work save, both, none;
  for (int i = 0; i < kPart; ++i) save.copies.push_back(asks.copy(true, i, i));
  both.copies = save.copies;
  for (int i = 0; i < kPart; ++i) both.copies.push_back(asks.copy(false, kPart + i, i));
  none.blocks = copied(0, kPart);

  asks.launch(none);
  const StepTimes arrays = asks.wait_last();
  EXPECT_GT(arrays.busy_ns, 0);
  EXPECT_GT(arrays.to_device_ns, 0) << "a step's arrays";
  EXPECT_EQ(arrays.to_host_ns, 0) << "results are written by kernels";
  asks.launch(save);
  const StepTimes saved = asks.wait_last();
  EXPECT_EQ(saved.to_host_ns, saved.host_copy_ns);
  EXPECT_GT(saved.to_host_ns, 0);
  asks.launch(both);
  const StepTimes halves = asks.wait_last();
  EXPECT_NEAR(double(halves.to_host_ns), 0.5 * double(halves.host_copy_ns), 1);
  EXPECT_GE(halves.to_device_ns, halves.host_copy_ns - halves.to_host_ns);

  for (HostCopy& copy : save.copies) copy.host = not_asked.host() + (copy.host - asks.host());
  not_asked.launch(save);
  const StepTimes untimed = not_asked.wait_last();
  EXPECT_GT(untimed.busy_ns, 0);
  EXPECT_GT(untimed.host_copy_ns, 0);
  EXPECT_EQ(untimed.to_device_ns, 0);
  EXPECT_EQ(untimed.to_host_ns, 0);
}

}  // namespace
}  // namespace sluice::cuda
