// The facade: submit token requests, receive token events. Everything behind it (scheduler, KV, executor)
// belongs to the engine thread; everything in this header may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/result.h"
#include "engine/batching_settings.h"
#include "engine/kv_settings.h"
#include "engine/logits_state.h"
#include "engine/scheduling_settings.h"
#include "engine/span_clock.h"
#include "model/spec.h"
#include "sched/request.h"

namespace sluice {

struct EngineDoor;
class StepLedger;

struct TokenLogprobs {
  float logprob = 0;
  int rank = 0;
  int count = 0;
  int32_t ids[kMaxTopLogprobs];
  float values[kMaxTopLogprobs];
};

// What a client sees of one token, or of the end.
struct TokenEvent {
  int32_t id = -1;                           // generated id; -1 in an event that only ends
  FinishReason finish = FinishReason::none;  // set in the last event
  int32_t stop_id = -1;                      // finish == stop: the end id that ended it (it is also in `id`)
  int32_t step = 0;                          // the engine's step number that made it
  TimeNs time = 0;                           // when the step's result was known
  // 1 - (tokens computed for the sequence since its previous token) / (tokens of context behind this one): near
  // 1 while decoding, the cached share of the prompt for the first token, low after a preemption.
  float kv_hit = 0;
  LogitsState logits = LogitsState::fine;  // that it was sampled from
  float peak = 0;                          // SampleResult::peak
  // Since the event before: it gave up its blocks, was left out for its client.
  bool preempted = false, paused = false;
  TokenLogprobs logprobs;  // filled where asked
};

// Milestones of a request, all on the monotonic clock. Written by the engine thread, readable once the last
// event has been popped.
struct RequestTimes {
  TimeNs submitted = 0, admitted = 0, first_token = 0, finished = 0;
  int steps = 0;
  int preemptions = 0;
  int cached_tokens = 0;                 // prompt tokens not computed again
  int host_tokens = 0, disk_tokens = 0;  // of these, those that came from outside the pool
};

// The same of a request that may still run, readable by any thread at any time. Written by the engine thread.
struct RequestProgress {
  SpanClock spans;  // from submission to the last event
  std::atomic<int> steps{0};
  std::atomic<int> preemptions{0};
  std::atomic<int> cached_tokens{0};
};

// One submitted request as its client holds it. The engine holds another reference until the sequence is gone.
class RequestStream {
 public:
  explicit RequestStream(size_t capacity) : events_(capacity) {}

  // Next event, in order. False: none yet (a `notify` will come).
  bool pop(TokenEvent& out);
  // The client wants no more: drops the sequence within one step, and counts it as `why` (stop: its answer is
  // complete, a stop string was found). Its last event says so, unless it had ended before.
  void cancel(FinishReason why = FinishReason::cancelled);

  // Log-probabilities of prompt tokens 1..n-1 (the first has none), complete before the first event is popped.
  const std::vector<TokenLogprobs>& prompt_logprobs() const { return prompt_logprobs_; }
  // [C] the pooled hidden state that Request::pooling asked for, complete before the first event is popped.
  const std::vector<float>& pooled() const { return pooled_; }
  const RequestTimes& times() const { return times_; }
  const RequestProgress& progress() const { return progress_; }

 private:
  friend class EngineImpl;  // makes it
  friend class StepLoop;    // fills it
  friend struct LiveRequest;
  friend class ScriptedEngine;  // the double of it in tests of the rooms above
  SpscRing<TokenEvent> events_;
  std::atomic<FinishReason> unwanted_{FinishReason::none};  // set once, by cancel
  std::atomic<bool> notified_{false};  // set by the engine when it notifies, cleared by pop when it runs dry
  std::atomic<bool> paused_{false};    // the engine waits for room; the next pop wakes it
  std::function<void()> notify_;
  std::shared_ptr<EngineDoor> door_;  // how to wake the engine; outlives it
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::vector<float> pooled_;
  RequestTimes times_;
  RequestProgress progress_;
};

struct EngineConfig {
  int max_sequences = 0;        // running at once; 0: automatic (settled() in make_engine.h)
  int max_queue = 1024;         // waiting while all seats are taken; submit refuses beyond
  int step_tokens = 0;          // token budget of one step: decodes first, then prompt chunks; 0: automatic
  int mixed_prompt_tokens = 0;  // most prompt tokens of a step in which others generate; 0: automatic
  int block_tokens = 0;         // 0: automatic: 16, or 64 where blocks change their precision
  size_t kv_bytes = 0;          // 0: chosen from free memory and the model's context
  int max_context = 0;          // 0: the model's
  int logit_rows = 64;          // rows of logits at a time
  bool graphs = true;           // record steps and replay them, on devices that can
  double gpu_memory_fraction = 0.9;    // of a card's memory, what everything together may take
  bool fusion = true;                  // load_weights
  bool gpu_fused_quantization = true;  // CudaOptions::fuse_quantization
  bool gpu_bf16_copies = true;         // CudaOptions::bf16_copies
  bool gpu_copy_times = false;         // CudaOptions::time_copies
  BatchingSettings batching = {};      // who may start when
  SchedulingSettings scheduling = {};
  KvSettings kv = {};
  bool prefix_cache = true;  // what was computed is found again by requests that begin alike
  // Of a CPU's memory that is free now, what another engine of this process has been promised and has not
  // touched yet. Decided by the program, no setting.
  size_t promised_bytes = 0;
};

// Where an engine's meters stand among those of other engines of the process.
struct MeterPlace {
  std::string pool;    // of all of them, as a label; empty: they have none
  bool gauges = true;  // false: what gauges say is another engine's matter, until Engine::show
};

// What was decided at start; printed, and returned by /v1/models and the admin route.
struct EngineInfo {
  ModelSpec spec;
  int context = 0;         // tokens a request may span: prompt + generated
  int context_wanted = 0;  // as configured or trained for: more than `context` where the pool holds no more
  int block_tokens = 0;
  int blocks = 0;
  int max_requests = 0;  // running and waiting together; submit refuses beyond
  size_t kv_bytes = 0;
  size_t weight_bytes = 0;
  size_t activation_bytes = 0;
  std::vector<int32_t> end_ids;  // the model's end-of-generation ids
  DeviceInfo device;
  Batching batching = {};
};

// "the context of this model is 8192 tokens"; where the pool shortens it, what of the pool does and which
// setting is for that.
std::string describe_context(const EngineInfo& info);

// A snapshot of the loop, for /metrics, /ready and liveness.
struct EngineStatus {
  int running = 0;
  int waiting = 0;
  int blocks_used = 0;
  int blocks_cached = 0;
  int blocks_total = 0;
  uint64_t steps = 0;
  TimeNs last_step = 0;  // when the last step ended
  bool draining = false;
  // Since when its thread has been in one turn of its loop, or a step has been running; 0: neither.
  TimeNs busy_since = 0;
  bool stuck = false;  // a step has been running for longer than a liveness limit, or give_up says so
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStatus status() const = 0;
  // Records of the last steps, for observe; null where an engine keeps none.
  virtual const StepLedger* step_ledger() const { return nullptr; }

  // Hands a request over. `notify` is called on the engine thread when events arrive after the stream had run
  // dry; it must be quick, must not block and must not call back into the stream. Errors: kInvalidArgument
  // (field named), kResourceExhausted (queue full), kUnavailable (draining).
  virtual Result<std::shared_ptr<RequestStream>> submit(Request request, std::function<void()> notify) = 0;
  // The same, but the engine need not look at it before ring() is called: who hands over many requests in one
  // go wakes its thread once, and finds them in one step.
  virtual Result<std::shared_ptr<RequestStream>> enqueue(Request request, std::function<void()> notify) {
    return submit(std::move(request), std::move(notify));
  }
  virtual void ring() {}

  // Replaces all that may change while running (Policy in sched/scheduler.h) by what is set in `config`, from
  // the next step on; nothing that runs or waits is lost. One caller at a time. The change in words, empty:
  // there is none. Errors: settings that are refused at start too (then nothing changes), kUnsupported where
  // there is no scheduler.
  virtual Result<std::string> reschedule(const EngineConfig&) {
    return Error{ErrorCode::kUnsupported, "this engine has no scheduler"};
  }

  // Whether the gauges say what this engine does: while one takes another's place (MeterPlace), one of the two.
  // Counters and histograms are of both. Any thread.
  virtual void show(bool) {}

  // Whoever watches it does not believe any more that its step ends: status() says so from now on. Any thread.
  virtual void give_up() {}

  // Nobody else will come: under `windowed`, batches begin with whoever waits. For good, since a drain follows;
  // drain() does it too. Called by the thread that calls reschedule().
  virtual void stop_gathering() {}
  // Refuses new requests, lets the running ones finish until `deadline`, then cancels what is left. Blocks
  // until idle.
  virtual void drain(TimeNs deadline) = 0;
};

}  // namespace sluice
