// Two servers of this process: one has the other as its canary. What a client of the first sees.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class CanaryProxyTest : public ServedTest {
 protected:
  void start_both(TrafficSettings traffic = {}, ServerConfig other = {}) {
    other.port = 0;
    auto started = Server::start(other);
    ASSERT_TRUE(started.ok());
    canary_ = std::move(started).value();
    canary_->serve_model(borrowed(canary_model_), {});
    traffic.canary.upstream = "http://127.0.0.1:" + std::to_string(canary_->port());
    ServerConfig config;
    config.traffic = traffic;
    start(config);
    say({"A"}, FinishReason::stop);
    canary_model_.scripted.script = [this](const Request&) {
      return canary_model_.says({"hello", "\xE2\x96\x81world"}, FinishReason::stop);
    };
  }
  TestResponse complete(const std::string& headers, bool stream = false) {
    TestClient client(server_->port());
    return client.post("/v1/completions", stream ? R"({"prompt":"a","stream":true})" : R"({"prompt":"a"})",
                       headers);
  }
  void fail_canary() {
    TokenEvent failed;
    failed.finish = FinishReason::failed;
    canary_model_.scripted.script = [failed](const Request&) { return std::vector<TokenEvent>{failed}; };
  }
  double metric(const std::string& name) {
    const std::string all = TestClient(server_->port()).get("/metrics").body;
    const size_t at = all.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(all.substr(at + name.size() + 2));
  }
  ToyModel canary_model_;
  std::unique_ptr<Server> canary_;
};

TEST_F(CanaryProxyTest, HeadersChoose) {
  TrafficSettings traffic;
  traffic.canary.steps = {};
  start_both(traffic);
  const TestResponse there = complete("X-Canary: always\r\n");
  EXPECT_EQ(there.status, 200);
  EXPECT_EQ(there.header("x-sluice-pool"), "canary");
  EXPECT_THAT(there.body, HasSubstr("hello world"));
  EXPECT_THAT(complete("X-Env: canary\r\n").body, HasSubstr("hello world"));
  for (const char* here : {"", "X-Canary: never\r\n", "X-Env: production\r\n"})
    EXPECT_EQ(complete(here).header("x-sluice-pool"), "") << here;
}

TEST_F(CanaryProxyTest, StreamsComeAsTheyAreMade) {
  start_both();
  canary_model_.scripted.script = nullptr;
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})", "X-Canary: always\r\n"));
  canary_model_.scripted.wait_submitted(1);
  canary_model_.scripted.emit(0, canary_model_.token("hello"));
  EXPECT_THAT(client.read_until("hello"), HasSubstr("text/event-stream"));
  canary_model_.scripted.emit(0, canary_model_.token("\xE2\x96\x81world", FinishReason::length));
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("world"));
}

TEST_F(CanaryProxyTest, ItLogsRequestsUnderTheSameId) {
  start_both();
  for (const char* given : {"", "X-Request-Id: mine\r\n"}) {
    const TestResponse there = complete(std::string("X-Canary: always\r\n") + given);
    const size_t asked = canary_model_.scripted.submitted();
    EXPECT_EQ(canary_model_.scripted.request(asked - 1).id, there.header("x-request-id"));
  }
}

TEST_F(CanaryProxyTest, WhatIsKeptAndWhatIsComparedStaysHere) {
  start_both();
  model_.scripted.pooled.assign(8, 1);
  model_.scripted.info_.spec.hidden = 8;
  TestClient client(server_->port());
  client.post("/v1/embeddings", R"({"input":"a"})", "X-Canary: always\r\n");
  client.post("/v1/responses", R"({"input":"a"})", "X-Canary: always\r\n");
  EXPECT_EQ(canary_model_.scripted.submitted(), 0u);
  EXPECT_EQ(model_.scripted.submitted(), 2u);
}

TEST_F(CanaryProxyTest, AClientThatLeavesEndsTheWorkThere) {
  start_both();
  canary_model_.scripted.script = nullptr;
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})", "X-Canary: always\r\n"));
  canary_model_.scripted.wait_submitted(1);
  client.close();
  canary_model_.scripted.wait_cancelled(0);
}

TEST_F(CanaryProxyTest, WhatFailsBeforeItsFirstByteIsAnsweredHere) {
  start_both();
  fail_canary();
  for (int i = 0; i < 3; ++i) {
    const TestResponse r = complete("X-Canary: always\r\n");
    EXPECT_EQ(r.status, 200);
    EXPECT_THAT(r.body, HasSubstr("\"A\""));
  }
  canary_.reset();  // nobody listens
  EXPECT_EQ(complete("X-Canary: always\r\n").status, 200);
}

TEST_F(CanaryProxyTest, TheBreakerStopsAskingIt) {
  TrafficSettings traffic;
  traffic.breaker.upstream = "quick";
  start_both(traffic);
  fail_canary();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(complete("X-Canary: always\r\n").status, 200);
  EXPECT_EQ(canary_model_.scripted.submitted(), 3u) << "three failures open it";
  TestClient client(server_->port());
  EXPECT_THAT(client.get("/metrics").body, HasSubstr("sluice_breaker_state{pool=\"canary\"} 1"));
}

TEST_F(CanaryProxyTest, WhatItRefusesIsAnsweredHereAndSaysNothingOfIt) {
  TrafficSettings traffic;
  traffic.canary.step_requests = 1;
  ServerConfig other;
  other.api_keys = {"its own"};
  start_both(traffic, other);
  const double before = metric("sluice_pool_requests_total{pool=\"canary\"}");
  for (int i = 0; i < 3; ++i) EXPECT_THAT(complete("X-Canary: always\r\n").body, HasSubstr("\"A\""));
  EXPECT_EQ(metric("sluice_pool_requests_total{pool=\"canary\"}"), before);
  EXPECT_EQ(metric("sluice_canary_percent"), 1) << "a refusal is no answer that speaks for it";
  // What is wrong is wrong here too.
  TestClient client(server_->port());
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt":7.5})", "X-Canary: always\r\n").status, 400);
}

TEST_F(CanaryProxyTest, DeadlinesThatClientsSetSayNothingOfIt) {
  TrafficSettings traffic;
  traffic.breaker.upstream = "quick";
  start_both(traffic);
  canary_model_.scripted.script = nullptr;
  TokenEvent late;
  late.finish = FinishReason::deadline;
  for (size_t i = 0; i < 4; ++i) {
    TestClient client(server_->port());
    const TimeNs sent = now_ns();
    client.send(
        post_text("/v1/completions", R"({"prompt":"a"})", "X-Canary: always\r\nX-Request-Timeout-Ms: 1\r\n"));
    canary_model_.scripted.wait_submitted(i + 1);
    while (now_ns() < sent + 2'000'000) std::this_thread::yield();
    canary_model_.scripted.emit(i, late);
    client.read_response();
  }
  EXPECT_EQ(metric("sluice_breaker_state{pool=\"canary\"}"), 0);
}

TEST_F(CanaryProxyTest, ItsClientsTakeNoPlaceHere) {
  TrafficSettings traffic;
  traffic.limit.mode = "rule";
  traffic.limit.min = traffic.limit.max = 1;
  start_both(traffic);
  canary_model_.scripted.script = nullptr;
  TestClient waits(server_->port());
  waits.send(post_text("/v1/completions", R"({"prompt":"a"})", "X-Canary: always\r\n"));
  canary_model_.scripted.wait_submitted(1);
  EXPECT_EQ(complete("X-Canary: never\r\n").status, 200);
}

TEST_F(CanaryProxyTest, RatesCountItsRequestsOnceAndItsAnswersSayWhatIsLeft) {
  TrafficSettings traffic;
  traffic.keys = {10, 100000};
  start_both(traffic);
  const TestResponse there = complete("X-Canary: always\r\n");
  EXPECT_EQ(there.header("x-sluice-pool"), "canary");
  EXPECT_EQ(there.header("x-ratelimit-remaining-requests"), "9");
  fail_canary();
  const TestResponse here = complete("X-Canary: always\r\n");
  EXPECT_EQ(here.header("x-sluice-pool"), "");
  EXPECT_EQ(here.header("x-ratelimit-remaining-requests"), "8");
  EXPECT_EQ(std::count_if(here.headers.begin(), here.headers.end(),
                          [](const auto& h) { return h.first == "x-ratelimit-remaining-requests"; }),
            1);
  EXPECT_EQ(complete("").header("x-ratelimit-remaining-requests"), "7");
}

TEST_F(CanaryProxyTest, ThoseTakenAwayEndWhenNothingIsUnderWayThere) {
  start_both();
  const auto threads = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++count;
    return count;
  };
  TrafficSettings traffic;
  const size_t before = threads();
  for (int i = 0; i < 20; ++i) {
    traffic.canary.upstream = "http://127.0.0.1:" + std::to_string(1 + i);
    ASSERT_TRUE(server_->set_traffic(traffic).ok());
  }
  EXPECT_LE(threads(), before + 1);
}

TEST_F(CanaryProxyTest, OneThatFailsMoreIsRolledBack) {
  TrafficSettings traffic;
  traffic.breaker.upstream = "off";
  traffic.canary.steps = {"50"};
  start_both(traffic);
  fail_canary();
  TestClient client(server_->port());
  for (int i = 0; i < 400 && model_.scripted.submitted() < 400; ++i) {
    const std::string session = "X-Session-Id: user-" + std::to_string(i) + "\r\n";
    ASSERT_EQ(client.post("/v1/completions", R"({"prompt":"a"})", session).status, 200);
  }
  const size_t asked = canary_model_.scripted.submitted();
  EXPECT_GE(asked, 20u);
  EXPECT_LT(asked, 60u) << "of about 200 by its share";
  EXPECT_THAT(client.get("/metrics").body, HasSubstr("sluice_canary_percent 0\n"));
  EXPECT_THAT(client.get("/v1/diagnosis").body,
              HasSubstr(R"("canary":{"percent":0,"rolled_back":true,"worse_in":"errors"})"));
}

TEST_F(CanaryProxyTest, OneWithAsManyAsItMayHaveLeavesTheRestToTheModelHere) {
  TrafficSettings traffic;
  traffic.canary.max_in_flight = 1;
  start_both(traffic);
  canary_model_.scripted.script = nullptr;
  TestClient first(server_->port());
  first.send(post_text("/v1/completions", R"({"prompt":"a"})", "X-Canary: always\r\n"));
  canary_model_.scripted.wait_submitted(1);
  EXPECT_EQ(complete("X-Canary: always\r\n").header("x-sluice-pool"), "");
}

TEST_F(CanaryProxyTest, ACanaryThatIsTakenAwayFinishesItsStreams) {
  start_both();
  canary_model_.scripted.script = nullptr;
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})", "X-Canary: always\r\n"));
  canary_model_.scripted.wait_submitted(1);
  canary_model_.scripted.emit(0, canary_model_.token("hello"));
  client.read_until("hello");
  ASSERT_TRUE(server_->set_traffic({}).ok());
  EXPECT_EQ(complete("X-Canary: always\r\n").header("x-sluice-pool"), "");
  canary_model_.scripted.emit(0, canary_model_.token("A", FinishReason::length));
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("\"text\":\"A\""));
}

TEST_F(CanaryProxyTest, ACutStreamSaysSo) {
  start_both();
  canary_model_.scripted.script = nullptr;
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})", "X-Canary: always\r\n"));
  canary_model_.scripted.wait_submitted(1);
  canary_model_.scripted.emit(0, canary_model_.token("hello"));
  client.read_until("hello");
  TokenEvent failed;
  failed.finish = FinishReason::failed;
  canary_model_.scripted.emit(0, failed);
  client.read_until("error");
  EXPECT_TRUE(client.at_end());
}

TEST_F(CanaryProxyTest, WhatMakesNoSenseIsRefusedAtTheStart) {
  for (const char* url : {"https://x", "x", "http://", "http://x:0", "http://x/y", "http://x:70000"}) {
    ServerConfig config;
    config.port = 0;
    config.traffic.canary.upstream = url;
    auto started = Server::start(config);
    ASSERT_FALSE(started.ok()) << url;
    EXPECT_EQ(started.error().field, "traffic.canary.upstream");
  }
  ServerConfig config;
  config.traffic.canary.steps = {"5", "x"};
  EXPECT_FALSE(Server::start(config).ok());
}

TEST_F(CanaryProxyTest, TheModelsOwnBreakerAnswers503AndSaysWhen) {
  ServerConfig config;
  config.traffic.breaker.model = "patient";
  start(config);
  TokenEvent failed;
  failed.finish = FinishReason::failed;
  model_.scripted.script = [failed](const Request&) { return std::vector<TokenEvent>{failed}; };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(complete("").status, 500);
  const TestResponse r = complete("");
  EXPECT_EQ(r.status, 503);
  EXPECT_THAT(r.body, HasSubstr("breaker_open"));
  EXPECT_GE(std::stoi(r.header("retry-after")), 1);
  EXPECT_EQ(model_.scripted.submitted(), 5u);
}

}  // namespace
}  // namespace sluice
