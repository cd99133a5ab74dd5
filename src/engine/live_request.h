// A request inside the engine: the scheduler's sequence, the client's stream, and what sampling needs of the
// wish in the form that a row of the batch points to. Made on the client's thread, then the engine thread's.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "engine/answer_mask.h"
#include "engine/engine.h"
#include "sched/sequence.h"

namespace sluice {

struct LiveRequest : Sequence {
  LiveRequest(Request wish, std::span<const int32_t> model_end_ids, std::shared_ptr<RequestStream> client,
              int vocab = 0)
      : Sequence(std::move(wish)), stream(std::move(client)) {
    for (const auto& [id, bias] : request.sampling.logit_bias) {
      bias_ids.push_back(id);
      bias_values.push_back(bias);
    }
    end_ids = request.stop_ids;
    if (!request.ignore_eos) end_ids.insert(end_ids.end(), model_end_ids.begin(), model_end_ids.end());
    const SamplingParams& p = request.sampling;
    has_penalties = p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1;
    needs_host_state = has_penalties;
    if (request.constraint)
      answer = std::make_shared<AnswerMask>(std::move(request.constraint), vocab, end_ids, request.min_tokens);
  }

  bool ends_with(int32_t id) const { return std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end(); }
  bool wants_prompt_logprobs() const { return request.sampling.prompt_top_logprobs >= 0; }
  bool pools() const { return request.pooling != Pooling::none; }
  uint64_t probe_key() const { return uint64_t(stream.get()); }  // base/probes.h: `sequence`
  float* pooled() { return stream->pooled_.data(); }             // [C]

  std::shared_ptr<RequestStream> stream;
  std::vector<int32_t> bias_ids;  // logit_bias, as two arrays
  std::vector<float> bias_values;
  std::vector<int32_t> end_ids;  // that end it: the client's, and the model's unless ignored
  bool has_penalties = false;
  std::shared_ptr<AnswerMask> answer;  // null: any token may come

  // Engine thread.
  int prompt_rows_planned =
      0;  // prompt tokens 1 .. n whose log-probabilities or states were asked for; survives preemption
  bool queued = true;  // counted in EngineDoor::queued
  TimeNs last_token = 0;
  int64_t active_step = 0;       // the last step that it was active in
  int furthest_computed = 0;     // tokens that it has ever computed or found; computing below is done again
  int computed_since_token = 0;  // tokens, since its previous token
  int preemptions_seen = 0;      // that its spans know of
  int preemptions_told = 0;      // that its events have told of
  bool was_paused = false;       // since its last event
};

}  // namespace sluice
