// What may be odd about one token of an answer, and what may have caused it: plain values and their names, as
// metrics, logs, traces and the timeline have them (docs/observability.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace sluice {

enum class AnomalyKind : uint8_t {
  slow_token,      // far longer since the token before than is usual in its lane
  low_reuse,       // most of what stands before it was computed again
  control_text,    // more than 15 % of the text are control characters
  id_jumps,        // consecutive ids lie further apart than this stream's do
  repetition,      // a few ids again and again
  nan_logits,      // it was chosen from logits that are not numbers
  flat_logits,     // or that are all the same
  sudden_entropy,  // the model has become much less sure than it was in this stream
  failed_step,     // the step that was to make it failed
};
inline constexpr int kAnomalyKinds = 9;

enum class AnomalyCause : uint8_t {
  preemption,
  kv_full,        // no block was free
  kv_eviction,    // blocks of the prefix cache gave way
  kv_movement,    // blocks changed their precision or their place
  slow_reader,    // its client did not read
  long_prompt,    // somebody's prompt was computed in the same step
  batch_reshape,  // many more sequences were computed with it
  graph_miss,     // the step was launched op by op
  run_queue,      // a thread that was ready to run got no core
  engine_stall,   // the engine's thread was busy between steps
  allocator,      // with allocations
  clock_jump,
  slow_step,  // the device took long, and nothing else explains it
  sampler,    // ids that the logits did not want
  sampler_setting,
  broken_op,  // an op of the model gave what is no number, or nothing
  model,      // the logits are what they are
  failed_step,
  unknown,
};
inline constexpr int kAnomalyCauses = 19;

std::string_view anomaly_name(AnomalyKind kind);
std::string_view cause_name(AnomalyCause cause);
// Whether a cause may stand behind a kind: the pairs that have a meter.
bool is_cause_of(AnomalyCause cause, AnomalyKind kind);

// One link of a chain of causes, the root first.
struct CauseLink {
  AnomalyCause cause = AnomalyCause::unknown;
  double share = 1;  // of what is odd, that it explains
  std::string text;  // with figures
};

struct Anomaly {
  AnomalyKind kind = AnomalyKind::slow_token;
  int token = 0;  // of the answer, from 1
  int step = 0;   // of the engine
  TimeNs at = 0;
  double value = 0, usual = 0;   // in what the kind is measured in: ms, shares, ids, nats
  std::vector<CauseLink> chain;  // never empty

  AnomalyCause cause() const { return chain.empty() ? AnomalyCause::unknown : chain[0].cause; }
};

}  // namespace sluice
