// What a client wishes, in tokens. Immutable once submitted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace sluice {

struct SamplingParams {
  float temperature = 1;  // 0: greedy
  int top_k = 0;          // 0: off
  float top_p = 1;
  float min_p = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  uint64_t seed = 0;  // the caller fills it with a random number where the client gave none
  std::vector<std::pair<int32_t, float>> logit_bias;  // at most kMaxLogitBias, ids in range
  int top_logprobs = -1;         // per generated token; -1: none, 0: the chosen token's only
  int prompt_top_logprobs = -1;  // per prompt token (echo); -1: none
};

struct Request {
  std::string id;               // for people and logs; may repeat
  std::vector<int32_t> prompt;  // at least one id, ids in range, shorter than the context (engine checks)
  SamplingParams sampling;
  int max_tokens = 16;  // generated; 0: prompt only (log-probabilities, cache warming)
  int min_tokens = 0;   // end ids are not sampled before
  bool ignore_eos = false;
  std::vector<int32_t> stop_ids;  // end ids of the client's, besides the model's
  TimeNs deadline = 0;            // 0: none
};

enum class FinishReason : uint8_t { none, stop, length, cancelled, deadline, failed };

}  // namespace sluice
