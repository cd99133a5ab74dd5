#include "observe/anomaly.h"

namespace sluice {

std::string_view anomaly_name(AnomalyKind kind) {
  constexpr std::string_view kNames[kAnomalyKinds] = {"slow-token",  "low-kv-reuse",    "control-characters",
                                                      "id-jumps",    "repetition-loop", "nan-logits",
                                                      "flat-logits", "sudden-entropy",  "failed-step"};
  return kNames[size_t(kind)];
}

std::string_view cause_name(AnomalyCause cause) {
  constexpr std::string_view kNames[kAnomalyCauses] = {
      "preemption",  "kv-full",       "kv-eviction", "kv-movement", "slow-reader",
      "long-prompt", "batch-reshape", "graph-miss",  "run-queue",   "engine-stall",
      "allocator",   "clock-jump",    "slow-step",   "sampler",     "sampler-setting",
      "broken-op",   "model",         "failed-step", "unknown"};
  return kNames[size_t(cause)];
}

bool is_cause_of(AnomalyCause cause, AnomalyKind kind) {
  using C = AnomalyCause;
  if (cause == C::unknown) return true;
  switch (kind) {
    case AnomalyKind::slow_token:
      return cause <= C::slow_step;
    case AnomalyKind::low_reuse:
      return cause <= C::kv_eviction;
    case AnomalyKind::control_text:
    case AnomalyKind::id_jumps:
    case AnomalyKind::repetition:
    case AnomalyKind::sudden_entropy:
      return cause == C::sampler || cause == C::sampler_setting || cause == C::model || cause == C::broken_op;
    case AnomalyKind::nan_logits:
    case AnomalyKind::flat_logits:
      return cause == C::broken_op;
    case AnomalyKind::failed_step:
      return cause == C::failed_step || cause == C::sampler_setting;
  }
  return false;
}

}  // namespace sluice
