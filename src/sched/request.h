// What a client wishes, in tokens. Immutable once submitted.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sched/token_constraint.h"

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

// Who goes first where not all can go at once. Each lane has a share that a burst in another cannot take.
enum class Lane : uint8_t { interactive, standard, batch };
inline constexpr int kLanes = 3;

constexpr const char* lane_name(Lane lane) {
  return lane == Lane::interactive ? "interactive" : lane == Lane::standard ? "standard" : "batch";
}

// What a request wants of its prompt's last hidden states, instead of tokens: nothing, that of the last token,
// or the mean over all. On a CPU only.
enum class Pooling : uint8_t { none, last, mean };

struct Request {
  std::string id;               // for people and logs; may repeat
  std::vector<int32_t> prompt;  // at least one id, ids in range, shorter than the context (engine checks)
  SamplingParams sampling;
  int max_tokens = 16;  // generated; 0: prompt only (log-probabilities, cache warming)
  int min_tokens = 0;   // end ids are not sampled before
  bool ignore_eos = false;
  Pooling pooling = Pooling::none;              // else max_tokens is 0
  std::vector<int32_t> stop_ids;                // end ids of the client's, besides the model's
  std::shared_ptr<TokenConstraint> constraint;  // of this answer alone; null: none. Not with ignore_eos
  TimeNs deadline = 0;                          // 0: none
  Lane lane = Lane::standard;
  uint32_t tenant = 0;  // who asks: inside a lane, tenants share fairly; 0: nobody in particular
  // Prefixes are shared only between requests of equal salt (a digest of the client's word; zeros: none given).
  std::array<uint64_t, 2> cache_salt{};
};

enum class FinishReason : uint8_t { none, stop, length, cancelled, deadline, failed };

}  // namespace sluice
