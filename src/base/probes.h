// USDT probes: places where bpftrace, perf and other tools outside the process may look, without anything being
// set here. Nobody attached: one load and a branch not taken. The kernel counts who is attached to a probe in
// its semaphore. Built without <sys/sdt.h> (Debian: systemtap-sdt-dev) there is nothing to attach to.
//
// Provider "sluice". A request's first arguments are its id (text) and `sequence`, a number that tells the
// choices of a request apart and is used again after its end. Times in nanoseconds.
//
//   request_start (id, sequence, prompt_tokens, max_tokens)   handed to the engine
//   request_admit (id, sequence, cached_tokens, waited)       has a slot; not after a preemption
//   first_token   (id, sequence, step, since_start)
//   token         (id, sequence, step, token, since_last)     each, the first included
//   preempt       (id, sequence, tokens)                      gave up its blocks; tokens: to be computed again
//   request_end   (id, sequence, reason, generated, since_start)
//   shed          (id, reason)                                refused: queue_full, draining
//   answer_write  (id, bytes)                                 its connection's thread sends next what it has
//   step_begin    (step, tokens, sequences)                   handed to the executor
//   step_end      (step, execute, gap, sampled)               taken back from it
//   graph_miss    (step, tokens)                              recorded anew instead of replayed
//   kv_alloc      (block, free)                               free: blocks left
//   kv_evict      (block)                                     kept content is given up
#pragma once

#include <cstdint>

extern "C" {
extern volatile unsigned short sluice_request_start_semaphore, sluice_request_admit_semaphore,
    sluice_first_token_semaphore, sluice_token_semaphore, sluice_preempt_semaphore,
    sluice_request_end_semaphore, sluice_shed_semaphore, sluice_answer_write_semaphore,
    sluice_step_begin_semaphore, sluice_step_end_semaphore, sluice_graph_miss_semaphore,
    sluice_kv_alloc_semaphore, sluice_kv_evict_semaphore;
}

namespace sluice::probe {

// The instruction that tools attach to, once each, out of line.
namespace fire {
void request_start(const char* id, uint64_t sequence, int64_t prompt_tokens, int64_t max_tokens);
void request_admit(const char* id, uint64_t sequence, int64_t cached_tokens, int64_t waited);
void first_token(const char* id, uint64_t sequence, int64_t step, int64_t since_start);
void token(const char* id, uint64_t sequence, int64_t step, int64_t token, int64_t since_last);
void preempt(const char* id, uint64_t sequence, int64_t tokens);
void request_end(const char* id, uint64_t sequence, const char* reason, int64_t generated, int64_t since_start);
void shed(const char* id, const char* reason);
void answer_write(const char* id, int64_t bytes);
void step_begin(int64_t step, int64_t tokens, int64_t sequences);
void step_end(int64_t step, int64_t execute, int64_t gap, int64_t sampled);
void graph_miss(int64_t step, int64_t tokens);
void kv_alloc(int64_t block, int64_t free);
void kv_evict(int64_t block);
}  // namespace fire

// Somebody is attached. Ask before working out what a probe's arguments are.
inline bool request_start_on() { return sluice_request_start_semaphore != 0; }
inline bool request_admit_on() { return sluice_request_admit_semaphore != 0; }
inline bool token_on() { return sluice_token_semaphore != 0; }
inline bool first_token_on() { return sluice_first_token_semaphore != 0; }
inline bool preempt_on() { return sluice_preempt_semaphore != 0; }
inline bool request_end_on() { return sluice_request_end_semaphore != 0; }
inline bool shed_on() { return sluice_shed_semaphore != 0; }
inline bool answer_write_on() { return sluice_answer_write_semaphore != 0; }
inline bool step_begin_on() { return sluice_step_begin_semaphore != 0; }
inline bool step_end_on() { return sluice_step_end_semaphore != 0; }
inline bool graph_miss_on() { return sluice_graph_miss_semaphore != 0; }
inline bool kv_alloc_on() { return sluice_kv_alloc_semaphore != 0; }
inline bool kv_evict_on() { return sluice_kv_evict_semaphore != 0; }

}  // namespace sluice::probe
