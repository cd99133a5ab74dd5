// Blocks that the pool gives up come back from host memory and from files, and answers are as if they had been
// computed: the scripted model reads its history through the blocks (fake_runner.h).
#include <filesystem>
#include <fstream>

#include "base/meter.h"
#include "engine/engine_fixture.h"
#include "engine/test_client.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

uint64_t disk_errors(const char* kind) {
  return meter::counter("sluice_kv_disk_errors_total", "", std::string("kind=\"") + kind + "\"").value();
}

uint64_t count(const char* name) { return meter::counter(name, "").value(); }

class EngineOutside : public EngineTest {
 protected:
  // Room for one request of the whole context in the pool, and for many outside it.
  Scene scene(const std::string& disk = {}) const {
    Scene s;
    s.policy.prefix_cache = true;
    s.policy.max_running = 4;
    s.context = 128;
    const KvLayout layout{.block_tokens = 4, .windows = s.windows, .max_length = 128, .max_step_tokens = 32};
    s.blocks = layout.peak_blocks(128) + 8;
    s.outside.host_slots = 4000;
    if (!disk.empty()) s.outside.disk = {disk, 1 << 20, {}};
    return s;
  }
  // What one request says, and how its prompt was had.
  RequestTimes ask(const Request& r) {
    TestClient client(*engine_, r);
    client.finish();
    EXPECT_EQ(client.ids, expected(r));
    return client.stream->times();
  }
  void stop() {
    expect_empty();
    engine_.reset();
  }
  std::string folder() const {
    const fs::path path = fs::path(testing::TempDir()) / ("outside_" + std::to_string(int(GetParam())));
    return path.string();
  }
  static std::vector<fs::path> files(const std::string& folder) {
    std::vector<fs::path> found;
    for (const auto& file : fs::recursive_directory_iterator(folder))
      if (file.is_regular_file()) found.push_back(file.path());
    return found;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, EngineOutside,
                         testing::Values(FakeRunner::Device::in_launch, FakeRunner::Device::behind_the_host),
                         device_name);

TEST_P(EngineOutside, WhatThePoolGaveUpComesBackFromTheHost) {
  make(scene());
  const Request first = wish(90, 8);
  EXPECT_EQ(ask(first).cached_tokens, 0);
  for (int other = 1; other < 6; ++other) ask(wish(100 + other, 8));
  const RequestTimes again = ask(first);
  EXPECT_EQ(again.cached_tokens, 88) << "all whole blocks of the prompt";
  EXPECT_GT(again.host_tokens, 40);
  EXPECT_EQ(again.disk_tokens, 0);
  stop();
}

TEST_P(EngineOutside, ManyAtATimeAnswerRight) {
  Scene s = scene();
  s.tiering = {.stages = {{{KvTier::int8, 8}, {KvTier::int4, 30}}}, .count = 2};
  s.blocks += 40;
  make(s);
  std::vector<Request> wishes;
  for (int i = 0; i < 12; ++i) wishes.push_back(wish(40 + 5 * i, 12));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<TestClient>> clients;
    for (const Request& r : wishes) clients.push_back(std::make_unique<TestClient>(*engine_, r));
    clients[round]->stream->cancel();
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i]->finish();
      if (int(i) == round) continue;
      EXPECT_EQ(clients[i]->ids, expected(wishes[i]));
    }
  }
  stop();
}

TEST_P(EngineOutside, FilesSurviveARestart) {
  fs::remove_all(folder());
  make(scene(folder()));
  const Request first = wish(90, 8);
  ask(first);
  stop();
  EXPECT_GE(files(folder()).size(), 22u) << "a block of each group for 90 tokens, less what is behind a window";
  make(scene(folder()));
  const RequestTimes again = ask(first);
  EXPECT_EQ(again.cached_tokens, 88);
  EXPECT_EQ(again.disk_tokens, 88);
  EXPECT_EQ(again.host_tokens, 0);
  const RequestTimes third = ask(first);
  EXPECT_EQ(third.disk_tokens, 0) << "it is in the pool now";
  stop();
}

TEST_P(EngineOutside, BlocksOfAnotherModelAreNotTaken) {
  fs::remove_all(folder());
  make(scene(folder()));
  const Request first = wish(90, 8);
  ask(first);
  stop();
  Scene other = scene(folder());
  other.outside.disk.identity[0] = 1;
  make(other);
  EXPECT_EQ(ask(first).cached_tokens, 0);
  stop();
}

void spoil(const fs::path& file) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(100);
  f.put('!');
}

TEST_P(EngineOutside, ACorruptBlockIsCountedAndComputedAgain) {
  fs::remove_all(folder());
  make(scene(folder()));
  const Request first = wish(90, 8);
  ask(first);
  stop();
  spoil(files(folder()).front());
  const uint64_t corrupt = disk_errors("corrupt");
  const uint64_t looked_up = count("sluice_prefix_cache_queries_total"),
                 found = count("sluice_prefix_cache_hits_total");
  make(scene(folder()));
  const RequestTimes again = ask(first);
  stop();
  EXPECT_EQ(disk_errors("corrupt"), corrupt + 1);
  EXPECT_LT(again.cached_tokens, 88);
  EXPECT_EQ(again.preemptions, 0) << "nobody took its blocks";
  EXPECT_EQ(count("sluice_prefix_cache_queries_total"), looked_up + 90) << "one prompt, looked up once";
  EXPECT_EQ(count("sluice_prefix_cache_hits_total"), found + uint64_t(again.cached_tokens));
}

TEST_P(EngineOutside, WhereAllBlocksAreCorruptTheSecondLossIsTheLast) {
  fs::remove_all(folder());
  make(scene(folder()));
  const Request first = wish(90, 8);
  ask(first);
  stop();
  for (const fs::path& file : files(folder())) spoil(file);
  const uint64_t found = count("sluice_prefix_cache_hits_total");
  make(scene(folder()));
  EXPECT_EQ(ask(first).cached_tokens, 0);
  stop();
  EXPECT_EQ(count("sluice_prefix_cache_hits_total"), found);
}

TEST_P(EngineOutside, ADiskThatTakesNothingIsCountedAndServedWithout) {
  fs::remove_all(folder());
  std::ofstream(folder()) << "a file where the folder should be";
  const uint64_t before = disk_errors("write");
  make(scene(folder()));
  const Request first = wish(90, 8);
  ask(first);
  for (int other = 1; other < 6; ++other) ask(wish(100 + other, 8));
  EXPECT_GT(ask(first).host_tokens, 40);
  stop();
  EXPECT_GT(disk_errors("write"), before);
  fs::remove_all(folder());
}

}  // namespace
}  // namespace sluice
