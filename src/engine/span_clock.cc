#include "engine/span_clock.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Holds the version odd. Orders as Boehm, "Can seqlocks get along with programming language memory models?"
// (MSPC 2012).
class Writing {
 public:
  explicit Writing(std::atomic<uint32_t>& version) : version_(version) {
    version_.store(version_.load(kRelaxed) + 1, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Writing() { version_.store(version_.load(kRelaxed) + 1, std::memory_order_release); }

 private:
  std::atomic<uint32_t>& version_;
};

}  // namespace

void SpanClock::start(Span span, TimeNs now) {
  Writing writing(version_);
  began_.store(now, kRelaxed);
  since_.store(now, kRelaxed);
  span_.store(uint8_t(span), kRelaxed);
  phase_.store(Phase::running, kRelaxed);
}

void SpanClock::charge(TimeNs now) {
  const TimeNs since = since_.load(kRelaxed);
  if (now <= since) return;
  auto& open = ns_[span_.load(kRelaxed)];
  open.store(open.load(kRelaxed) + (now - since), kRelaxed);
  since_.store(now, kRelaxed);
}

void SpanClock::enter(Span span, TimeNs now) {
  if (phase_.load(kRelaxed) != Phase::running || current() == span) return;
  Writing writing(version_);
  charge(now);
  span_.store(uint8_t(span), kRelaxed);
}

void SpanClock::stop(TimeNs now) {
  if (phase_.load(kRelaxed) != Phase::running) return;
  Writing writing(version_);
  charge(now);
  phase_.store(Phase::stopped, kRelaxed);
}

SpanClock::Reading SpanClock::read(TimeNs now) const {
  for (;;) {
    const uint32_t before = version_.load(std::memory_order_acquire);
    Reading reading;
    for (size_t i = 0; i < size_t(kSpans); ++i) reading.spans.ns[i] = ns_[i].load(kRelaxed);
    reading.began = began_.load(kRelaxed);
    const TimeNs since = since_.load(kRelaxed);
    const Span open = current();
    const Phase phase = phase_.load(kRelaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 || version_.load(kRelaxed) != before) continue;
    reading.ended = phase == Phase::stopped;
    if (phase == Phase::running) reading.spans[open] += std::max<TimeNs>(0, now - since);
    return reading;
  }
}

}  // namespace sluice
