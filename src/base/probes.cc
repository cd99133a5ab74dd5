#include "base/probes.h"

#if __has_include(<sys/sdt.h>)
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#else  // the functions stay, and are never called
#define STAP_PROBE1(...)
#define STAP_PROBE2(...)
#define STAP_PROBE3(...)
#define STAP_PROBE4(...)
#define STAP_PROBE5(...)
#endif

// Where the notes of the probes say that they are. Used by the kernel, so they must stay.
#define SEMAPHORE(name) \
  __attribute__((section(".probes"), used)) volatile unsigned short sluice_##name##_semaphore = 0

extern "C" {
SEMAPHORE(request_start);
SEMAPHORE(request_admit);
SEMAPHORE(first_token);
SEMAPHORE(token);
SEMAPHORE(preempt);
SEMAPHORE(request_end);
SEMAPHORE(shed);
SEMAPHORE(answer_write);
SEMAPHORE(step_begin);
SEMAPHORE(step_end);
SEMAPHORE(graph_miss);
SEMAPHORE(kv_alloc);
SEMAPHORE(kv_evict);
}

namespace sluice::probe::fire {

void request_start(const char* id, uint64_t sequence, int64_t prompt_tokens, int64_t max_tokens) {
  STAP_PROBE4(sluice, request_start, id, sequence, prompt_tokens, max_tokens);
}
void request_admit(const char* id, uint64_t sequence, int64_t cached_tokens, int64_t waited) {
  STAP_PROBE4(sluice, request_admit, id, sequence, cached_tokens, waited);
}
void first_token(const char* id, uint64_t sequence, int64_t step, int64_t since_start) {
  STAP_PROBE4(sluice, first_token, id, sequence, step, since_start);
}
void token(const char* id, uint64_t sequence, int64_t step, int64_t token, int64_t since_last) {
  STAP_PROBE5(sluice, token, id, sequence, step, token, since_last);
}
void preempt(const char* id, uint64_t sequence, int64_t tokens) {
  STAP_PROBE3(sluice, preempt, id, sequence, tokens);
}
void request_end(const char* id, uint64_t sequence, const char* reason, int64_t generated,
                 int64_t since_start) {
  STAP_PROBE5(sluice, request_end, id, sequence, reason, generated, since_start);
}
void shed(const char* id, const char* reason) { STAP_PROBE2(sluice, shed, id, reason); }
void answer_write(const char* id, int64_t bytes) { STAP_PROBE2(sluice, answer_write, id, bytes); }
void step_begin(int64_t step, int64_t tokens, int64_t sequences) {
  STAP_PROBE3(sluice, step_begin, step, tokens, sequences);
}
void step_end(int64_t step, int64_t execute, int64_t gap, int64_t sampled) {
  STAP_PROBE4(sluice, step_end, step, execute, gap, sampled);
}
void graph_miss(int64_t step, int64_t tokens) { STAP_PROBE2(sluice, graph_miss, step, tokens); }
void kv_alloc(int64_t block, int64_t free) { STAP_PROBE2(sluice, kv_alloc, block, free); }
void kv_evict(int64_t block) { STAP_PROBE1(sluice, kv_evict, block); }

}  // namespace sluice::probe::fire
