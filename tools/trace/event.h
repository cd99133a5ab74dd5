// What the kernel's side of sluice-trace tells the other. C, since both read it.
#ifndef SLUICE_TRACE_EVENT_H
#define SLUICE_TRACE_EVENT_H

enum event_kind {
  EVENT_START,    // a: prompt tokens, b: most tokens
  EVENT_ADMIT,    // a: cached tokens, b: ns waited
  EVENT_TOKEN,    // a: step, b: token id, c: ns since the last
  EVENT_PREEMPT,  // a: tokens to be computed again
  EVENT_END,      // a: generated, b: ns since the start, word: why
  EVENT_SHED,     // word: why
  EVENT_SEND,     // a: bytes that the kernel took, or below 0: errno; b: ns that it took, c: file descriptor
};

#define ID_BYTES 64
#define WORD_BYTES 16

// What the operating system did to the engine's threads and the process, since the tool came.
struct totals {
  unsigned long long ready_ns;    // ready to run, and not running
  unsigned long long longest_ns;  // of these waits
  unsigned long long off_ns;      // not running, for whatever reason
  unsigned long long faults;      // page faults of the process
};

struct event {
  unsigned int kind;
  unsigned int pad;
  unsigned long long time;      // ns, CLOCK_MONOTONIC
  unsigned long long sequence;  // of the request's choice; 0: not told
  long long a, b, c;
  char id[ID_BYTES];  // of the request; longer ones are cut
  char word[WORD_BYTES];
  struct totals engine;  // by then
};

#endif
