// One row's wishes as they lie on the card: what SampleRow points to is at offsets into the slot's staging, and
// what the host can settle once (the random number, which filters there are) is settled.
#pragma once

#include <cstdint>

namespace sluice::cuda {

struct alignas(16) StagedRow {
  int32_t slot = -1;
  int32_t target_id = -1;
  int32_t top_logprobs = 0;  // how many of the likeliest are listed
  uint8_t idle = 1;          // nothing is wanted
  uint8_t wants_logprobs = 0;
  uint8_t greedy = 1;
  uint8_t adjusted = 0;  // bias, bans, mask or penalties

  float scale = 1;        // 1 / temperature
  int32_t top_k = 0;      // 0: off, or no less than the vocabulary
  float top_p = 1;        // 1 and more: off
  float min_p_depth = 0;  // ids further than this below the largest logit are out; meaningful with has_min_p
  double uniform = 0;     // the draw's number in [0, 1)
  uint8_t has_min_p = 0;
  uint8_t has_mask = 0;
  uint8_t has_penalties = 0;

  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;

  // Offsets in 4-byte words from the start of the slot's staging.
  uint32_t bias_ids = 0, bias_values = 0, banned = 0, history = 0, mask = 0;
  int32_t bias_count = 0, banned_count = 0, history_prompt = 0, history_total = 0;
};

}  // namespace sluice::cuda
