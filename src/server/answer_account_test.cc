// What an answer's account says, by a clock that the test turns.
#include "server/answer_account.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

class AnswerAccountTest : public testing::Test {
 protected:
  // First byte at 1000, body there at 1010, of which parsing takes 5.
  void open(int choices, TimeNs submitted = 1040) {
    RequestAccount head;
    head.request_id = "req";
    account_.open(log_, head, {.first_byte = 1000, .last_byte = 1010, .prepared_from = 1020, .parsed = 1025});
    for (int k = 0; k < choices; ++k) {
      engine_.push_back(std::make_shared<RequestProgress>());
      engine_.back()->spans.start(Span::queue, submitted);
      account_.add_choice(engine_.back());
    }
    account_.begin();
  }
  const RequestAccount& closed() {
    kept_ = log_->find("req");
    EXPECT_TRUE(kept_);
    for (const ChoiceAccount& choice : kept_->account->choices)
      EXPECT_EQ(choice.spans.total(), kept_->account->total());
    return *kept_->account;
  }
  SpanClock& engine(size_t k = 0) { return engine_[k]->spans; }
  static TokenEvent token(int32_t id, TimeNs time) {
    TokenEvent event;
    event.id = id;
    event.time = time;
    return event;
  }

  std::shared_ptr<RequestLog> log_ = std::make_shared<RequestLog>();
  std::vector<std::shared_ptr<RequestProgress>> engine_;
  AnswerAccount account_;
  std::optional<RequestLog::Kept> kept_;
};

TEST_F(AnswerAccountTest, EachMomentBelongsToOneSpan) {
  open(1);
  engine().enter(Span::prefill, 1100);
  engine().enter(Span::decode, 1150);
  engine().stop(1400);
  account_.token(0, token(7, 1150));
  account_.token(0, token(8, 1400));
  account_.choice_ended(0, "stop", 1420);
  account_.answered("completed", 1430);
  EXPECT_TRUE(log_->find_running("req"));
  account_.close(1500);
  EXPECT_FALSE(log_->find_running("req"));
  const RequestAccount& a = closed();
  EXPECT_EQ(a.total(), 500);
  EXPECT_EQ(a.choices[0].submitted, 1040);
  EXPECT_EQ(a.choices[0].first_token, 1150);
  EXPECT_EQ(a.choices[0].longest_gap, 250);
  EXPECT_EQ(a.choices[0].engine_end, 1400);
  const SpanTimes& s = a.spans();
  EXPECT_EQ(s[Span::read], 10);
  EXPECT_EQ(s[Span::parse], 5);
  EXPECT_EQ(s[Span::tokenize], 25);
  EXPECT_EQ(s[Span::queue], 60);
  EXPECT_EQ(s[Span::prefill], 50);
  EXPECT_EQ(s[Span::decode], 250);
  EXPECT_EQ(s[Span::format], 30);
  EXPECT_EQ(s[Span::write], 70);
  EXPECT_EQ(a.choices[0].generated, 2);
  EXPECT_STREQ(a.choices[0].finish_reason, "stop");
  const auto& tokens = kept_->tokens->at(0);
  EXPECT_FLOAT_EQ(tokens[0].latency_ms, 150e-6f);  // since the first byte
  EXPECT_FLOAT_EQ(tokens[1].latency_ms, 250e-6f);
}

TEST_F(AnswerAccountTest, AStopStringEndsItBeforeTheEngineKnows) {
  open(1);
  engine().enter(Span::decode, 1100);
  account_.choice_ended(0, "stop", 1200);
  account_.answered("completed", 1210);
  engine().stop(1900);  // the step under way
  account_.close(1220);
  EXPECT_EQ(closed().total(), 220);
  EXPECT_EQ(closed().spans()[Span::decode], 100);
  EXPECT_EQ(closed().spans()[Span::format], 10);
}

TEST_F(AnswerAccountTest, BackPressureCountsFromTheEnginesEndOnly) {
  open(1);
  engine().enter(Span::decode, 1100);
  account_.block(1150);
  account_.unblock(1200);  // the engine went on: nobody waited
  account_.block(1250);
  engine().stop(1300);
  account_.unblock(1500);  // 200 of these after the end
  account_.choice_ended(0, "length", 1510);
  account_.answered("completed", 1520);
  account_.close(1600);
  const SpanTimes& s = closed().spans();
  EXPECT_EQ(s[Span::decode], 200);
  EXPECT_EQ(s[Span::format], 20);
  EXPECT_EQ(s[Span::write], 200 + 80);
}

TEST(Blocked, CountsFromTheEnginesEndAsLongAsItLasts) {
  Blocked blocked;
  EXPECT_EQ(blocked.ns(900, 500), 0);
  blocked.since = 300;
  EXPECT_EQ(blocked.ns(900, 500), 400);
  blocked.since = 700, blocked.before = 50;
  EXPECT_EQ(blocked.ns(900, 500), 250);
}

TEST_F(AnswerAccountTest, ChoicesThatEndEarlierWaitForTheOthers) {
  open(2);
  engine(0).enter(Span::decode, 1100);
  engine(1).enter(Span::decode, 1200);
  engine(0).stop(1300);
  account_.choice_ended(0, "stop", 1310);
  engine(1).stop(1700);
  account_.choice_ended(1, "length", 1710);
  account_.answered("completed", 1720);
  account_.close(1800);
  const RequestAccount& a = closed();
  EXPECT_EQ(a.last, 1u);
  EXPECT_EQ(a.choices[0].spans[Span::other_choices], 400);
  EXPECT_EQ(a.choices[1].spans[Span::other_choices], 0);
}

TEST_F(AnswerAccountTest, AClientThatLeavesEndsItWhereItIs) {
  open(1);
  account_.answered("client_disconnect", 1300);
  account_.close(1300);
  EXPECT_EQ(closed().spans()[Span::queue], 260);
  EXPECT_EQ(closed().total(), 300);
  EXPECT_STREQ(closed().choices[0].finish_reason, "client_disconnect");
  account_.close(1400);  // once is enough
  EXPECT_EQ(log_->recent(10).size(), 1u);
}

TEST_F(AnswerAccountTest, ALongAnswerKeepsItsFirstTokens) {
  open(1);
  const int many = int(RequestLog::kTokensOfRequest) + 10;
  for (int i = 0; i < many; ++i) account_.token(0, token(i, 1100 + i));
  account_.answered("completed", 9000);
  account_.close(9000);
  EXPECT_EQ(closed().choices[0].generated, many);
  EXPECT_EQ(kept_->tokens->at(0).size(), RequestLog::kTokensOfRequest);
}

TEST_F(AnswerAccountTest, WhatWasNotSubmittedHasNoAccount) {
  account_.open(log_, {}, {});
  account_.drop();
  account_.close(5);
  EXPECT_TRUE(log_->recent(10).empty());
}

}  // namespace
}  // namespace sluice
