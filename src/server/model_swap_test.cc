// One model takes another's place while answers run: what clients see, and when the first one goes.
#include <gmock/gmock.h>

#include <memory>

#include "server/served_models.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class ModelSwapTest : public ServedTest {
 protected:
  // Two models that come and go, with the fixture's own never served.
  void start_with_first() {
    start({}, false);
    first_ = std::make_shared<ToyModel>();
    server_->serve_model(first_, {});
    other_->scripted.script = [this](const Request&) {
      return other_->says({"hello", "\xE2\x96\x81world"}, FinishReason::stop);
    };
  }
  void swap() { server_->serve_model(other_, {}); }
  TestResponse complete() { return TestClient(server_->port()).post("/v1/completions", R"({"prompt":"a"})"); }

  std::shared_ptr<ToyModel> first_, other_ = std::make_shared<ToyModel>();
};

TEST_F(ModelSwapTest, AStreamGoesOnWithTheModelThatBeganIt) {
  start_with_first();
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})"));
  first_->scripted.wait_submitted(1);
  first_->scripted.emit(0, first_->token("ABC"));
  EXPECT_THAT(client.read_until("ABC"), HasSubstr("text/event-stream"));
  swap();
  EXPECT_THAT(complete().body, HasSubstr("hello world")) << "who comes now gets the other one";
  first_->scripted.emit(0, first_->token("DEF", FinishReason::length));
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("DEF"));
  EXPECT_EQ(first_->scripted.submitted(), 1u);
}

TEST_F(ModelSwapTest, TheOldModelGoesAfterItsLastAnswer) {
  start_with_first();
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})"));
  first_->scripted.wait_submitted(1);
  swap();
  EXPECT_GT(first_.use_count(), 1) << "an answer of it runs";
  first_->scripted.emit(0, first_->token("ABC", FinishReason::length));
  client.read_until("[DONE]");
  while (first_.use_count() > 1) std::this_thread::yield();
}

TEST_F(ModelSwapTest, ItGoesAlsoWhereItsClientLeaves) {
  start_with_first();
  {
    TestClient client(server_->port());
    client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})"));
    first_->scripted.wait_submitted(1);
    swap();
  }
  first_->scripted.wait_cancelled(0);
  while (first_.use_count() > 1) std::this_thread::yield();
}

// Counts how often it is told that something was enqueued.
class RungModel final : public ServedModel {
 public:
  class RungEngine final : public Engine {
   public:
    const EngineInfo& info() const override { return info_; }
    EngineStatus status() const override { return {}; }
    Result<std::shared_ptr<RequestStream>> submit(Request, std::function<void()>) override {
      return Error{ErrorCode::kUnavailable, ""};
    }
    void ring() override { ++rung; }
    void drain(TimeNs) override {}
    EngineInfo info_;
    int rung = 0;
  };
  RungEngine& engine() override { return engine_; }
  const Tokenizer& tokenizer() const override { return toy_.tokenizer(); }
  const ChatTemplate* chat_template() const override { return nullptr; }
  GrammarCompiler& grammars() override { return toy_.grammars(); }
  const GenerationDefaults& defaults() const override { return toy_.defaults(); }
  const std::string& name() const override { return toy_.name(); }
  const std::string& path() const override { return toy_.path(); }

 private:
  ToyModel toy_;
  RungEngine engine_;
};

TEST(ServedModelsTest, WhatWasOnItsWayToAReplacedEngineIsHeard) {
  ServedModels models;
  auto first = std::make_shared<RungModel>(), second = std::make_shared<RungModel>();
  models.ring();
  models.set(Pool::stable, first);
  models.set(Pool::stable, second);
  models.ring();
  EXPECT_EQ(first->engine().rung, 1);
  EXPECT_EQ(second->engine().rung, 1);
  const std::weak_ptr<RungModel> gone = first;
  first.reset();
  EXPECT_TRUE(gone.expired()) << "it is not kept for that";
  models.ring();
  EXPECT_EQ(second->engine().rung, 2);
}

}  // namespace
}  // namespace sluice
