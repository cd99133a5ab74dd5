// Where a request's time goes. A request is in exactly one span at a time, and a transition charges the time
// since the last one: so the spans add up to the whole by construction.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>

#include "base/clock.h"

namespace sluice {

enum class Span : uint8_t {
  read,           // first byte of the HTTP request to the last of its body
  parse,          // JSON to values
  tokenize,       // template and tokenizer, the wait for the text pool included
  queue,          // handed to the engine, not yet admitted
  prefix_lookup,  // the plan that admitted it: prefix match, first blocks
  prefill,        // a step computes tokens of its prompt
  prefill_wait,   // admitted, prompt not complete, in no step
  decode,         // a step computes its newest token
  decode_wait,    // generating, in no step: held back for blocks, or its sample is needed first
  preempted,      // gave up its blocks, in the queue again
  recompute,      // a step computes what it had computed before a preemption
  paused,         // its client reads too slowly
  other_choices,  // ended, while other choices of the same answer go on
  format,         // engine's last word to the answer's last byte: wake-up, detokenizer, JSON
  write,          // until the last byte is handed to the socket
};
inline constexpr int kSpans = 15;

constexpr const char* span_name(Span span) {
  constexpr const char* kNames[kSpans] = {
      "read",        "parse",     "tokenize",  "queue",  "prefix_lookup", "prefill", "prefill_wait", "decode",
      "decode_wait", "preempted", "recompute", "paused", "other_choices", "format",  "write"};
  return kNames[size_t(span)];
}

struct SpanTimes {
  std::array<TimeNs, kSpans> ns{};
  TimeNs& operator[](Span span) { return ns[size_t(span)]; }
  TimeNs operator[](Span span) const { return ns[size_t(span)]; }
  TimeNs total() const { return std::accumulate(ns.begin(), ns.end(), TimeNs(0)); }
};

// One writer at a time, any readers: a seqlock whose payload is atomic words, so writing neither locks nor
// allocates, and a reader that lost the race reads again.
class SpanClock {
 public:
  // `ended`: stopped, the times are final. `began` 0: not started.
  struct Reading {
    SpanTimes spans;
    TimeNs began = 0;
    bool ended = false;
    TimeNs until() const { return began + spans.total(); }
  };

  void start(Span span, TimeNs now);
  // What has passed goes to the span that was; a clock that went backwards passes nothing. Without effect on a
  // clock that does not run.
  void enter(Span span, TimeNs now);
  void stop(TimeNs now);
  // Writer.
  Span current() const { return Span(span_.load(std::memory_order_relaxed)); }

  // The open span charged until `now`, where the clock still runs.
  Reading read(TimeNs now) const;

 private:
  enum class Phase : uint8_t { fresh, running, stopped };
  void charge(TimeNs now);

  std::atomic<uint32_t> version_{0};  // odd while being written
  std::atomic<Phase> phase_{Phase::fresh};
  std::atomic<uint8_t> span_{0};
  std::atomic<TimeNs> began_{0}, since_{0};
  std::array<std::atomic<TimeNs>, kSpans> ns_{};
};

}  // namespace sluice
