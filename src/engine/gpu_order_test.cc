// Launches overlap on a card (tensor/cuda/device/launch.h): a kernel starts before the one in front of it is
// done, reads weights and what earlier steps left, and only then waits. Whatever it read too early would be
// what the layer or the step before left in the same buffer. So layers in a recorded step, one right behind the
// other, must give the very bits that they give op by op, with the card idle in between.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/make_engine.h"
#include "model/test_run.h"

namespace sluice {
namespace {

std::unique_ptr<Backend> open_card() {
  const char* named = std::getenv("SLUICE_GPU_DEVICE");
  auto made = make_backend(named ? named : "cuda", {.threads = 1, .instruction_set = {}});
  CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
  return std::move(*made);
}

class WaitsAfterEachOp final : public OpWatch {
 public:
  explicit WaitsAfterEachOp(Backend& backend) : backend_(backend) {}
  void after(int, const char*, const Tensor&) override { backend_.finish_step(); }

 private:
  Backend& backend_;
};

// Many layers with heads as wide as large models', and weights of each width.
class GpuOrder : public testing::TestWithParam<const char*> {};

TEST_P(GpuOrder, OverlappedLayersGiveTheBitsOfOneByOne) {
  TestRun run(std::string("dummy:llama-3.2-3b:") + GetParam(), open_card());
  WaitsAfterEachOp waits(run.backend());
  const auto id = [](int sequence, int position) { return 300 + (sequence * 977 + position * 131) % 30000; };
  constexpr int kSteps = 3, kPiece = 250;
  int next_sequence = 0;
  for (const std::vector<int>& contexts : {std::vector{700}, {1}, {17, 700, 1, 90, 250, 64, 333, 480}}) {
    std::array<std::vector<std::vector<float>>, 2> logits;  // op by op, overlapped
    for (const bool overlapped : {false, true}) {
      const int first = next_sequence;
      next_sequence += int(contexts.size());
      for (size_t s = 0; s < contexts.size(); ++s)
        for (int at = 0; at < contexts[s]; at += kPiece) {
          TestRun::Chunk chunk{first + int(s), {}, 0};
          for (int p = at; p < std::min(contexts[s], at + kPiece); ++p) chunk.ids.push_back(id(int(s), p));
          run.step({chunk});
        }
      run.set_watch(overlapped ? nullptr : &waits);
      run.set_recorded(overlapped);
      for (int step = 0; step < kSteps; ++step) {
        std::vector<TestRun::Chunk> chunks;
        for (size_t s = 0; s < contexts.size(); ++s)
          chunks.push_back({first + int(s), {id(int(s), contexts[s] + step)}, 1});
        for (auto& row : run.step(chunks)) logits[overlapped].push_back(std::move(row));
      }
      run.set_watch(nullptr);
      run.set_recorded(false);
    }
    for (size_t i = 0; i < logits[0].size(); ++i) EXPECT_EQ(logits[0][i], logits[1][i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, GpuOrder, testing::Values("bf16", "fp8", "w8a8", "awq"));

}  // namespace
}  // namespace sluice
