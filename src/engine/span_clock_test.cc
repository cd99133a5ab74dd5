#include "engine/span_clock.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace sluice {
namespace {

TEST(SpanClock, ChargesWhatPassedToTheSpanThatWas) {
  SpanClock clock;
  clock.start(Span::queue, 100);
  clock.enter(Span::prefill, 130);
  clock.enter(Span::decode, 150);
  clock.enter(Span::prefill, 160);  // a span may be entered again
  clock.stop(165);
  const SpanClock::Reading r = clock.read(1000);
  EXPECT_EQ(r.spans[Span::queue], 30);
  EXPECT_EQ(r.spans[Span::prefill], 20 + 5);
  EXPECT_EQ(r.spans[Span::decode], 10);
  EXPECT_EQ(r.spans.total(), 65);
  EXPECT_EQ(r.until(), 165);
  EXPECT_TRUE(r.ended);
}

TEST(SpanClock, TheOpenSpanCountsUntilItIsRead) {
  SpanClock clock;
  EXPECT_EQ(clock.read(50).spans.total(), 0);  // not started
  clock.start(Span::queue, 100);
  EXPECT_EQ(clock.read(110).spans[Span::queue], 10);
  EXPECT_EQ(clock.read(130).spans[Span::queue], 30);  // reading changes nothing
  clock.enter(Span::decode, 140);
  const SpanClock::Reading r = clock.read(150);
  EXPECT_EQ(r.spans[Span::queue], 40);
  EXPECT_EQ(r.spans[Span::decode], 10);
  EXPECT_FALSE(r.ended);
}

TEST(SpanClock, NothingHappensBeforeTheStartAndAfterTheEnd) {
  SpanClock clock;
  clock.enter(Span::decode, 10);
  clock.stop(20);
  EXPECT_EQ(clock.read(30).began, 0);
  clock.start(Span::queue, 100);
  clock.stop(110);
  clock.enter(Span::decode, 120);
  clock.stop(130);
  EXPECT_EQ(clock.read(140).spans.total(), 10);
}

TEST(SpanClock, AClockThatGoesBackwardsPassesNothing) {
  SpanClock clock;
  clock.start(Span::queue, 100);
  clock.enter(Span::prefill, 90);
  clock.enter(Span::decode, 120);
  clock.stop(110);
  const SpanClock::Reading r = clock.read(0);
  EXPECT_EQ(r.spans[Span::queue], 0);
  EXPECT_EQ(r.spans[Span::prefill], 20);
  EXPECT_EQ(r.spans[Span::decode], 0);
  EXPECT_EQ(r.until(), 120);
}

TEST(SpanClock, SumsAreExactWhateverTheOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    SpanClock clock;
    TimeNs now = 1 + random() % 1000;
    const TimeNs began = now;
    clock.start(Span::queue, now);
    for (int i = 0; i < 100; ++i) clock.enter(Span(random() % kSpans), now += random() % 50);
    EXPECT_EQ(clock.read(now + 9).spans.total(), now + 9 - began);
    clock.stop(now += 5);
    EXPECT_EQ(clock.read(now + 100).spans.total(), now - began);
  }
}

// Written by one thread and read by another, no reading is torn: each adds up to the time that was asked for.
TEST(SpanClock, AReaderSeesAWholeState) {
  SpanClock clock;
  clock.start(Span::queue, 1);
  std::atomic<TimeNs> written{1};
  std::thread writer([&] {
    for (TimeNs t = 2; t < 200'000; ++t) {
      clock.enter(t % 2 ? Span::prefill : Span::decode, t);
      written.store(t, std::memory_order_release);
    }
    clock.stop(200'000);
    written.store(200'000, std::memory_order_release);
  });
  for (bool ended = false; !ended;) {
    constexpr TimeNs kLater = 300'000;
    const SpanClock::Reading r = clock.read(kLater);
    EXPECT_EQ(r.spans.total(), (r.ended ? 200'000 : kLater) - 1);
    ended = written.load(std::memory_order_acquire) == 200'000;
  }
  writer.join();
}

}  // namespace
}  // namespace sluice
