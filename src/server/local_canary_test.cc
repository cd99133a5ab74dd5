// A canary in the same process: what a client sees, and that the stable pool does not see it.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

// The toy model by another name.
class NamedModel final : public ServedModel {
 public:
  explicit NamedModel(std::string name) : name_(std::move(name)), path_("/models/" + name_ + ".gguf") {}
  ScriptedEngine& engine() override { return toy.scripted; }
  const Tokenizer& tokenizer() const override { return toy.tokenizer(); }
  const ChatTemplate* chat_template() const override { return toy.chat_template(); }
  GrammarCompiler& grammars() override { return toy.grammars(); }
  const GenerationDefaults& defaults() const override { return toy.defaults(); }
  const std::string& name() const override { return name_; }
  const std::string& path() const override { return path_; }

  ToyModel toy;

 private:
  std::string name_, path_;
};

class LocalCanaryTest : public ServedTest {
 protected:
  void start_both(TrafficSettings traffic = {}) {
    traffic.canary.model = canary_->path();
    ServerConfig config;
    config.traffic = traffic;
    start(config);
    say({"A"}, FinishReason::stop);
    canary_->toy.scripted.script = [this](const Request&) {
      return canary_->toy.says({"hello", "\xE2\x96\x81world"}, FinishReason::stop);
    };
    server_->serve_canary(canary_);
  }
  static TrafficSettings by_header() {
    TrafficSettings traffic;
    traffic.canary.steps = {};
    return traffic;
  }
  TestResponse complete(const std::string& headers, const std::string& members = "") {
    return TestClient(server_->port()).post("/v1/completions", R"({"prompt":"a")" + members + "}", headers);
  }
  void canary_ends_with(FinishReason reason) {
    TokenEvent last;
    last.finish = reason;
    canary_->toy.scripted.script = [last](const Request&) { return std::vector<TokenEvent>{last}; };
  }
  static std::string model_of(const TestResponse& response) {
    const size_t at = response.body.find("\"model\":\"") + 9;
    return response.body.substr(at, response.body.find('"', at) - at);
  }

  static constexpr const char* kAlways = "X-Canary: always\r\n";
  std::shared_ptr<NamedModel> canary_ = std::make_shared<NamedModel>("finch");
};

TEST_F(LocalCanaryTest, HeadersChoose) {
  start_both(by_header());
  for (const char* members : {"", R"(,"stream":true)", R"(,"model":"toy")", R"(,"model":"finch")"}) {
    const TestResponse there = complete(kAlways, members);
    EXPECT_EQ(there.status, 200) << members;
    EXPECT_EQ(there.header("x-sluice-pool"), "canary") << members;
    EXPECT_EQ(model_of(there), "finch") << members;
    EXPECT_THAT(there.body, HasSubstr("hello")) << members;
  }
  EXPECT_THAT(complete("X-Env: canary\r\n").body, HasSubstr("hello world"));
  for (const char* here : {"", "X-Canary: never\r\n", "X-Env: production\r\n"}) {
    const TestResponse stable = complete(here);
    EXPECT_EQ(stable.header("x-sluice-pool"), "") << here;
    EXPECT_EQ(model_of(stable), "toy") << here;
  }
}

TEST_F(LocalCanaryTest, ItsNameAsksForIt) {
  start_both(by_header());
  const TestResponse named = complete("", R"(,"model":"finch")");
  EXPECT_EQ(model_of(named), "finch");
  EXPECT_EQ(named.header("x-sluice-pool"), "canary");
  TestClient client(server_->port());
  EXPECT_THAT(client.get("/v1/models").body, HasSubstr(R"("id":"finch")"));
  EXPECT_EQ(client.get("/v1/models/finch").status, 200);
  const TestResponse nobody = complete("", R"(,"model":"heron")");
  EXPECT_EQ(nobody.status, 404);
  EXPECT_THAT(nobody.body, HasSubstr("this server serves 'toy'"));
  // Who wants that one and no other hears that it failed.
  canary_ends_with(FinishReason::failed);
  EXPECT_EQ(complete("", R"(,"model":"finch")").status, 500);
  EXPECT_EQ(model_.scripted.submitted(), 0u);
}

TEST_F(LocalCanaryTest, WeightsSendThereAndSessionsStay) {
  TrafficSettings traffic;
  traffic.canary.steps = {"50"};
  start_both(traffic);
  int there = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string session = "X-Session-Id: " + std::to_string(i) + "\r\n";
    const std::string pool = complete(session).header("x-sluice-pool");
    EXPECT_EQ(complete(session).header("x-sluice-pool"), pool);
    there += pool == "canary";
  }
  EXPECT_GT(there, 5);
  EXPECT_LT(there, 35);
}

TEST_F(LocalCanaryTest, WhatItsEngineFailsAtTheStablePoolAnswers) {
  start_both(by_header());
  canary_ends_with(FinishReason::failed);
  for (const char* members : {"", R"(,"stream":true)", R"(,"n":2,"stream":true)"}) {
    const TestResponse answer = complete(kAlways, members);
    EXPECT_EQ(answer.status, 200) << members;
    EXPECT_EQ(model_of(answer), "toy") << members;
    EXPECT_EQ(answer.header("x-sluice-pool"), "") << members;
  }
}

TEST_F(LocalCanaryTest, NorDoLogitsThatAreNone) {
  start_both(by_header());
  canary_->toy.scripted.script = [this](const Request&) {
    auto events = canary_->toy.says({"hello"}, FinishReason::stop);
    events[0].logits = LogitsState::nan;
    return events;
  };
  EXPECT_EQ(model_of(complete(kAlways)), "toy");
}

TEST_F(LocalCanaryTest, NorWhereAnAnswersFormIsAskedFor) {
  start_both(by_header());
  canary_->toy.scripted.script = [this](const Request&) {
    auto events = canary_->toy.says({"A"}, FinishReason::stop);
    events[0].logits = LogitsState::nan;
    return events;
  };
  const TestResponse answer = complete(kAlways, R"(,"guided_regex":"A")");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(model_of(answer), "toy");
}

TEST_F(LocalCanaryTest, ItsClientsTakeNoPlaceOfTheStablePools) {
  TrafficSettings traffic = by_header();
  traffic.limit.mode = "rule";
  traffic.limit.min = traffic.limit.max = 1;
  start_both(traffic);
  canary_->toy.scripted.script = nullptr;
  TestClient waits(server_->port());
  waits.send(post_text("/v1/completions", R"({"prompt":"a"})", kAlways));
  canary_->toy.scripted.wait_submitted(1);
  EXPECT_EQ(complete("").status, 200);
}

TEST_F(LocalCanaryTest, WhoNamesItHearsWhetherItIsFullOrFails) {
  TrafficSettings traffic = by_header();
  traffic.canary.max_in_flight = 1;
  traffic.breaker.upstream = "patient";
  start_both(traffic);
  constexpr const char* kNamed = R"(,"model":"finch")";
  canary_->toy.scripted.script = nullptr;
  TestClient waits(server_->port());
  waits.send(post_text("/v1/completions", R"({"prompt":"a"})", kAlways));
  canary_->toy.scripted.wait_submitted(1);
  const TestResponse full = complete("", kNamed);
  EXPECT_EQ(full.status, 429);
  EXPECT_THAT(full.body, HasSubstr("overloaded"));
  TokenEvent failed;
  failed.finish = FinishReason::failed;
  canary_->toy.scripted.emit(0, failed);
  waits.read_response();
  canary_ends_with(FinishReason::failed);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(complete("", kNamed).status, 500);
  const TestResponse open = complete("", kNamed);
  EXPECT_EQ(open.status, 503);
  EXPECT_THAT(open.body, HasSubstr("breaker_open"));
  EXPECT_GT(std::stoi(open.header("retry-after")), 1);
}

TEST_F(LocalCanaryTest, WhatWaitsForOneThatHangsTheStablePoolAnswers) {
  start_both(by_header());
  canary_->toy.scripted.script = nullptr;
  TestClient waits(server_->port()), reads(server_->port()), formed(server_->port()), named(server_->port());
  waits.send(post_text("/v1/completions", R"({"prompt":"a"})", kAlways));
  canary_->toy.scripted.wait_submitted(1);
  reads.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})", kAlways));
  canary_->toy.scripted.wait_submitted(2);
  formed.send(post_text("/v1/completions", R"({"prompt":"a","guided_regex":"A"})", kAlways));
  canary_->toy.scripted.wait_submitted(3);
  named.send(post_text("/v1/completions", R"({"prompt":"a","model":"finch"})"));
  canary_->toy.scripted.wait_submitted(4);
  canary_->toy.scripted.emit(1, canary_->toy.token("hello"));
  reads.read_until("hello");
  canary_->toy.scripted.stuck = true;
  server_->engine_hangs();
  EXPECT_EQ(model_of(waits.read_response()), "toy");
  EXPECT_EQ(model_of(formed.read_response()), "toy");
  EXPECT_THAT(reads.read_until("The engine failed"), HasSubstr("\"error\""));
  EXPECT_EQ(named.read_response().status, 500);
  EXPECT_EQ(model_of(complete(kAlways)), "toy") << "nor is anybody sent there";
  EXPECT_EQ(complete("", R"(,"model":"finch")").status, 503);
  canary_->toy.scripted.stuck = false;
  canary_->toy.scripted.script = [this](const Request&) {
    return canary_->toy.says({"hello"}, FinishReason::stop);
  };
  EXPECT_EQ(model_of(complete(kAlways)), "finch") << "until it goes on";
}

TEST_F(LocalCanaryTest, AStreamThatHasBegunIsCut) {
  start_both(by_header());
  canary_->toy.scripted.script = nullptr;
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})", kAlways));
  canary_->toy.scripted.wait_submitted(1);
  canary_->toy.scripted.emit(0, canary_->toy.token("hello"));
  client.read_until("hello");
  TokenEvent broken = canary_->toy.token("ABC");
  broken.logits = LogitsState::nan;
  canary_->toy.scripted.emit(0, broken);
  EXPECT_THAT(client.read_until("error"), Not(HasSubstr("ABC")));
  EXPECT_TRUE(client.at_end());
  canary_->toy.scripted.wait_cancelled(0);
}

TEST_F(LocalCanaryTest, ARefusalOfItsEngineIsNoneOfTheServer) {
  start_both(by_header());
  canary_->toy.scripted.accept_at_most = 0;
  EXPECT_EQ(model_of(complete(kAlways)), "toy");
}

TEST_F(LocalCanaryTest, WhatItCannotTakeTheStablePoolTakes) {
  start_both(by_header());
  canary_->toy.scripted.info_.context = 4;
  const TestResponse answer =
      TestClient(server_->port()).post("/v1/completions", R"({"prompt":"a b c d e f"})", kAlways);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(model_of(answer), "toy");
}

TEST_F(LocalCanaryTest, ItsBreakerIsItsOwn) {
  TrafficSettings traffic = by_header();
  traffic.breaker.upstream = traffic.breaker.model = "quick";
  start_both(traffic);
  canary_ends_with(FinishReason::failed);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(complete(kAlways).status, 200);
  EXPECT_EQ(canary_->toy.scripted.submitted(), 3u) << "then it is open";
  EXPECT_THAT(TestClient(server_->port()).get("/metrics").body,
              HasSubstr("sluice_breaker_state{pool=\"stable\"} 0"));
}

TEST_F(LocalCanaryTest, OneThatIsWorseIsRolledBack) {
  TrafficSettings traffic;
  traffic.canary.steps = {"50"};
  traffic.breaker.upstream = "off";
  start_both(traffic);
  canary_ends_with(FinishReason::failed);
  const auto rolled_back = [&] {
    return TestClient(server_->port()).get("/metrics").body.find("sluice_canary_percent 0\n") !=
           std::string::npos;
  };
  int requests = 0;
  while (!rolled_back() && requests < 1000)
    EXPECT_EQ(complete("X-Session-Id: " + std::to_string(requests++) + "\r\n").status, 200);
  EXPECT_TRUE(rolled_back());
  const size_t before = canary_->toy.scripted.submitted();
  for (int i = 0; i < 10; ++i) complete("");
  EXPECT_EQ(canary_->toy.scripted.submitted(), before);
  // Another model in its place begins anew.
  server_->serve_canary(std::make_shared<NamedModel>("heron"));
  EXPECT_FALSE(rolled_back());
}

TEST_F(LocalCanaryTest, PlacesAreGivenBack) {
  TrafficSettings traffic = by_header();
  traffic.canary.max_in_flight = 1;
  start_both(traffic);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(complete(kAlways).header("x-sluice-pool"), "canary");
  canary_ends_with(FinishReason::failed);
  EXPECT_EQ(model_of(complete(kAlways)), "toy");
  canary_->toy.scripted.script = nullptr;
  const size_t before = canary_->toy.scripted.submitted();
  {
    TestClient leaver(server_->port());
    leaver.send(post_text("/v1/completions", R"({"prompt":"a"})", kAlways));
    canary_->toy.scripted.wait_submitted(before + 1);
    EXPECT_EQ(model_of(complete(kAlways)), "toy") << "it has as many as it may";
  }
  canary_->toy.scripted.wait_cancelled(before);
  canary_->toy.scripted.script = [this](const Request&) {
    return canary_->toy.says({"ABC"}, FinishReason::stop);
  };
  EXPECT_EQ(complete(kAlways).header("x-sluice-pool"), "canary");
}

TEST_F(LocalCanaryTest, EmbeddingsAreOfOneModel) {
  start_both(by_header());
  model_.scripted.pooled.assign(8, 1);
  model_.scripted.info_.spec.hidden = 8;
  TestClient(server_->port()).post("/v1/embeddings", R"({"input":"a"})", kAlways);
  EXPECT_EQ(canary_->toy.scripted.submitted(), 0u);
}

TEST_F(LocalCanaryTest, ItGoesWithoutAStreamDropped) {
  start_both(by_header());
  canary_->toy.scripted.script = nullptr;
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})", kAlways));
  canary_->toy.scripted.wait_submitted(1);
  server_->serve_canary(nullptr);
  EXPECT_EQ(model_of(complete(kAlways)), "toy");
  EXPECT_EQ(complete("", R"(,"model":"finch")").status, 404);
  canary_->toy.scripted.emit(0, canary_->toy.token("hello", FinishReason::length));
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("hello"));
  while (canary_.use_count() > 1) std::this_thread::yield();
}

// A canary of the same model goes by its name, and a list that is made while another takes its place is of one
// moment: an id stands there once.
TEST_F(LocalCanaryTest, NamesAreOfOneMomentWhileModelsChange) {
  start_both(by_header());
  const auto same = std::make_shared<NamedModel>("finch");
  std::atomic<bool> over{false};
  std::thread swapping([&] {
    while (!over) {
      server_->serve_model(same, {});
      server_->serve_model(borrowed(model_), {});
    }
  });
  TestClient client(server_->port());
  int twice = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string body = client.get("/v1/models").body;
    const size_t first = body.find(R"("id":"finch")");
    twice += first != std::string::npos && body.find(R"("id":"finch")", first + 1) != std::string::npos;
  }
  over = true;
  swapping.join();
  EXPECT_EQ(twice, 0);
}

TEST(CanaryTraffic, OneOfTwoKinds) {
  TrafficSettings traffic;
  traffic.canary.upstream = "http://127.0.0.1:1";
  traffic.canary.model = "b.gguf";
  ServerConfig config;
  config.port = 0;
  config.traffic = traffic;
  const auto started = Server::start(config);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().field, "traffic.canary.upstream");
}

}  // namespace
}  // namespace sluice
