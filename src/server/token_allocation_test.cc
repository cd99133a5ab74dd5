// What a streamed token costs between the engine's outbox and the socket: no allocation, on the engine's thread
// (which wakes the connection) and on the network thread. engine_test has the engine's own steps.
#include <pthread.h>

#include <atomic>
#include <cstring>

#include "base/allocation_budget.h"
#include "server/testing/api_test_case.h"

namespace sluice {
namespace {

std::atomic<uint64_t> counted{0};

void count_network_thread() {
  char name[16] = {};
  if (pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::strcmp(name, "sluice-net") == 0)
    ++counted;
}

class TokenAllocationTest : public ApiTestCase {
 protected:
  // What grows by doubling (the account's list of tokens, the text of a stored response) does so while warm.
  static constexpr int kWarm = 340, kMeasured = 100;

  void SetUp() override {
    set_allocation_hook(count_network_thread);
    ApiTestCase::SetUp();
  }
  void TearDown() override {
    server_.reset();
    set_allocation_hook(nullptr);
  }

  // Nothing that is odd about a token, which is told: no loop, even intervals.
  static const char* word(int i) {
    static constexpr const char* kWords[] = {"ABC", "DEF", "GH", "hello"};
    return kWords[uint32_t(i) * 2654435761u >> 30];
  }

  TokenEvent event(int i) const {
    TokenEvent event = model_.token(word(i));
    event.step = i;
    event.time = began_ + TimeNs(i) * 1'000'000;
    event.kv_hit = 1;
    event.logprobs.logprob = -1.5f;
    event.logprobs.count = 2;
    event.logprobs.ids[0] = event.id, event.logprobs.ids[1] = model_.id("hello");
    return event;
  }

  // Streams tokens one by one; allocations of the engine's side and of the network thread for the measured
  // ones.
  uint64_t cost_of(const std::string& path, const std::string& members) {
    TestClient client(server_->port());
    client.send(post_text(path, "{\"stream\":true," + members + "}"));
    model_.scripted.wait_submitted(++requests_);
    uint64_t waking = 0, before = 0;
    for (int i = 0; i < kWarm + kMeasured; ++i) {
      if (i == kWarm) before = counted.load(), waking = 0;
      const TokenEvent token = event(i);
      const uint64_t own = thread_allocations();
      EXPECT_TRUE(model_.scripted.emit(requests_ - 1, token));
      waking += thread_allocations() - own;
      EXPECT_NE(client.read_until(word(i)), "");
    }
    const uint64_t cost = counted.load() - before + waking;
    model_.scripted.emit(requests_ - 1, model_.end());
    EXPECT_NE(client.read_until("0\r\n\r\n"), "");
    return cost;
  }

  const TimeNs began_ = now_ns();
  size_t requests_ = 0;
};

const std::string kPrompt = R"("max_tokens":480,"prompt":"x")";
const std::string kMessages = R"("max_tokens":480,"messages":[{"role":"user","content":"x"}])";

TEST_F(TokenAllocationTest, OfCompletionsIsNone) {
  EXPECT_EQ(cost_of("/v1/completions", kPrompt), 0u);
  EXPECT_EQ(cost_of("/v1/completions", kPrompt + R"(,"stop":["zzzz","a long stop string"])"), 0u);
  EXPECT_EQ(cost_of("/v1/completions", kPrompt + R"(,"logprobs":2,"return_token_ids":true)"), 0u);
}

TEST_F(TokenAllocationTest, OfChatIsNone) {
  EXPECT_EQ(cost_of("/v1/chat/completions", kMessages), 0u);
  EXPECT_EQ(cost_of("/v1/chat/completions", kMessages + R"(,"logprobs":true,"top_logprobs":2)"), 0u);
}

TEST_F(TokenAllocationTest, OfMessagesIsNone) { EXPECT_EQ(cost_of("/v1/messages", kMessages), 0u); }

TEST_F(TokenAllocationTest, OfResponsesIsNone) {
  EXPECT_EQ(cost_of("/v1/responses", R"("max_output_tokens":480,"input":"x")"), 0u);
}

TEST_F(TokenAllocationTest, IsCountedAtAll) {
  ServerConfig plain;
  plain.pooled_io = false;
  start(plain);
  EXPECT_GE(cost_of("/v1/completions", kPrompt), uint64_t{kMeasured});
}

}  // namespace
}  // namespace sluice
