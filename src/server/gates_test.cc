// What clients see of the gates: rates, limits, their headers, and in which order lanes are refused.
#include <gmock/gmock.h>

#include "base/sha256.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::HasSubstr;

constexpr const char* kBody = R"({"prompt":"hello","max_tokens":5})";

class GatesTest : public ServedTest {
 protected:
  TestResponse complete(const std::string& headers = "", const std::string& body = kBody) {
    TestClient client(server_->port());
    return client.post("/v1/completions", body, headers);
  }
  // Requests that wait for their first token: the engine says nothing to them.
  void wait_for_first_tokens(int count, const std::string& lane) {
    const size_t before = model_.scripted.submitted();
    for (int i = 0; i < count; ++i) {
      waiting_.push_back(std::make_unique<TestClient>(server_->port()));
      waiting_.back()->send(post_text("/v1/completions", kBody, "X-Priority: " + lane + "\r\n"));
    }
    model_.scripted.wait_submitted(before + size_t(count));
  }
  std::vector<std::unique_ptr<TestClient>> waiting_;
};

TEST_F(GatesTest, WithoutSettingsNothingIsLimitedAndNothingIsSaidOfIt) {
  start();
  say({"A"}, FinishReason::stop);
  const TestResponse r = complete();
  EXPECT_EQ(r.status, 200);
  for (const auto& [name, value] : r.headers) EXPECT_EQ(name.find("ratelimit"), std::string::npos) << name;
}

TEST_F(GatesTest, AKeysRequestsAreCountedAndTheAnswerSaysSo) {
  ServerConfig config;
  config.api_keys = {"first", "second"};
  config.traffic.keys.requests_per_minute = 2;
  start(config);
  say({"A"}, FinishReason::stop);
  const std::string first = "Authorization: Bearer first\r\n";
  const TestResponse r = complete(first);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.header("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(r.header("x-ratelimit-remaining-requests"), "1");
  EXPECT_THAT(r.header("x-ratelimit-reset-requests"), HasSubstr("s"));
  EXPECT_EQ(complete(first).status, 200);
  const TestResponse refused = complete(first);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("rate_limit_exceeded"));
  EXPECT_EQ(refused.header("x-ratelimit-remaining-requests"), "0");
  const int wait_s = std::stoi(refused.header("retry-after"));
  EXPECT_GE(wait_s, 1);
  EXPECT_LE(wait_s, 30);
  EXPECT_EQ(complete("Authorization: Bearer second\r\n").status, 200) << "another key's minute is its own";
  TestClient messages(server_->port());
  const TestResponse in_anthropics_words = messages.post(
      "/v1/messages", R"({"max_tokens":5,"messages":[{"role":"user","content":"a"}]})", "X-Api-Key: first\r\n");
  EXPECT_EQ(in_anthropics_words.status, 429) << "529 would say that the server is at fault";
  EXPECT_THAT(in_anthropics_words.body, HasSubstr("rate_limit_error"));
}

TEST_F(GatesTest, TokensAreSettledWhenTheAnswerIsThere) {
  ServerConfig config;
  config.traffic.keys.tokens_per_minute = 1000;
  start(config);
  say({"A"}, FinishReason::stop);
  const TestResponse r = complete("", R"({"prompt":[33,34,35,36],"max_tokens":100})");
  EXPECT_EQ(r.header("x-ratelimit-limit-tokens"), "1000");
  EXPECT_EQ(r.header("x-ratelimit-remaining-tokens"), "896") << "as if all were generated";
  const TestResponse next = complete("", R"({"prompt":[33,34,35,36],"max_tokens":100})");
  EXPECT_GE(std::stoi(next.header("x-ratelimit-remaining-tokens")), 1000 - 6 - 104);
}

TEST_F(GatesTest, BatchIsRefusedBeforeStandardAndStandardBeforeInteractive) {
  ServerConfig config;
  config.traffic.limit.mode = "rule";
  config.traffic.limit.min = config.traffic.limit.max = 10;
  start(config);
  wait_for_first_tokens(5, "batch");
  EXPECT_EQ(complete("X-Priority: batch\r\n").status, 429);
  wait_for_first_tokens(3, "standard");
  const TestResponse refused = complete("X-Priority: standard\r\n");
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("overloaded"));
  EXPECT_FALSE(refused.header("retry-after").empty());
  wait_for_first_tokens(2, "interactive");
  EXPECT_EQ(complete("X-Priority: interactive\r\n").status, 429);
  // Nobody who was let in lost by it, and a place is free with a first token.
  model_.scripted.emit(0, model_.token("A", FinishReason::length));
  EXPECT_EQ(waiting_[0]->read_response().status, 200);
  wait_for_first_tokens(1, "interactive");
  waiting_.clear();
  for (size_t i = 1; i < 11; ++i) model_.scripted.wait_cancelled(i);
  say({"A"}, FinishReason::stop);
  EXPECT_EQ(complete("X-Priority: batch\r\n").status, 200) << "who left gave its place back";
}

TEST_F(GatesTest, AnswersAreCutBeforeRequestsAreRefused) {
  ServerConfig config;
  config.traffic.limit.mode = "rule";
  config.traffic.limit.min = config.traffic.limit.max = 10;
  config.traffic.degrade.max_tokens = 2;
  start(config);
  wait_for_first_tokens(4, "batch");
  say({"A", "A"}, FinishReason::length);
  const TestResponse cut = complete("X-Priority: batch\r\n");
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(cut.header("x-sluice-degraded"), "max_tokens=2");
  EXPECT_EQ(model_.scripted.request(4).max_tokens, 2);
  EXPECT_EQ(complete("X-Priority: interactive\r\n").header("x-sluice-degraded"), "");
  EXPECT_EQ(model_.scripted.request(5).max_tokens, 5);
}

TEST_F(GatesTest, SettingsChangeWhileItRuns) {
  start();
  say({"A"}, FinishReason::stop);
  EXPECT_EQ(complete().status, 200);
  TrafficSettings settings;
  settings.keys.requests_per_minute = 1;
  ASSERT_TRUE(server_->set_traffic(settings).ok());
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(complete().status, 429);
  ASSERT_TRUE(server_->set_traffic({}).ok());
  EXPECT_EQ(complete().status, 200);
}

}  // namespace
}  // namespace sluice
