// Why a token is odd: what happened in its step, joined. Pure functions of step records and of what is known of
// its request; called where an answer is made, never by the engine's thread.
//
// Of a slow token, each thing that took time between the token before it and this one is charged with it; what
// took most of what is more than usual is the root, and the others that took a tenth or more follow. Of text
// that is odd, the logits' state tells the model's fault from the sampler's and from what the client asked for.
#pragma once

#include <span>

#include "engine/step_record.h"
#include "observe/anomaly.h"

namespace sluice {

// Of what a client asked for, what shapes its text.
struct SamplerSettings {
  float temperature = 0;
  bool biased = false;       // logit_bias
  bool constrained = false;  // by a grammar
  bool penalised = false;
};

struct OddFacts {
  AnomalyKind kind = AnomalyKind::slow_token;
  double value = 0, usual = 0;
  TimeNs from = 0, to = 0;  // when the token before it was there, and it
  int64_t step_before = 0, step = 0;
  // In order, as far as they are still known: some up to that of the token before, for what is usual, to the
  // one behind this step.
  std::span<const StepRecord> steps;
  uint32_t tenant = 0;
  bool preempted = false, paused = false;  // since the token before
  bool unlikely = false;                   // StreamWatch::saw_unlikely
  bool broken = false;                     // its stream has had logits that were none
  SamplerSettings sampler;
};

// Never empty: what nothing explains is `unknown`.
std::vector<CauseLink> explain(const OddFacts& facts);

}  // namespace sluice
