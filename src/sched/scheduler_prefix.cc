// What of a sequence need not be computed, because another was computed that began alike (kv/prefix_index.h).
#include <algorithm>

#include "sched/plan_state.h"

namespace sluice {
namespace {

// A sequence waits for what another is computing if that is longer than what is there by so many blocks.
constexpr int kWorthWaitingBlocks = 4;

}  // namespace

// The last token is always computed: its logits are wanted. So are those of the whole prompt where its
// log-probabilities are; once something is generated they have been delivered.
PrefixMatch Scheduler::find_prefix(const Sequence& s) const {
  if (!prefixes_ || (s.request.sampling.prompt_top_logprobs >= 0 && s.generated() == 0)) return {};
  return prefixes_->find(s.ids, s.request.cache_salt, int(s.ids.size()) - 1);
}

// Whether a sequence that runs is computing a prefix of this one, so much beyond what is found already that it
// is better to wait a step or two. Only those that came earlier, and not in a later lane, are waited for: so a
// wait ends, and nobody waits for the batch lane.
bool Scheduler::comes_soon(const Sequence& candidate, const PrefixMatch& match) const {
  if (!prefixes_ || (candidate.request.sampling.prompt_top_logprobs >= 0 && candidate.generated() == 0))
    return false;
  const int least = match.tokens + kWorthWaitingBlocks * layout_.block_tokens;
  for (const Sequence* s : running_) {
    if (!s->plannable() || s->order > candidate.order || s->lane() > candidate.lane()) continue;
    const int both = std::min(int(s->ids.size()), int(candidate.ids.size()) - 1);
    if (s->computed >= both || both < least || s->request.cache_salt != candidate.request.cache_salt) continue;
    const auto until = std::mismatch(s->ids.begin(), s->ids.begin() + both, candidate.ids.begin()).first;
    const int alike = int(until - s->ids.begin()) / layout_.block_tokens * layout_.block_tokens;
    if (alike >= least && s->computed < alike) return true;
  }
  return false;
}

void Scheduler::take_over(PlanState& state, Sequence& s, const PrefixMatch& match) {
  if (!prefixes_) return;
  prefixes_->take_over(*s.table, match, state.plan.copies);
  s.computed = s.planned = match.tokens;
  const bool first = s.preemptions == 0;
  (first ? s.cached_tokens : s.resumed_tokens) += match.tokens;
  (first ? state.plan.cached_tokens : state.plan.resumed_tokens) += match.tokens;
  if (first) state.plan.looked_up_tokens += s.prompt_tokens;
}

// What has landed is never written again. A token that was thrown away is not in `ids`, so what was computed of
// it is not kept.
void Scheduler::keep_landed(const Sequence& s) {
  if (!prefixes_) return;
  const size_t known = std::min(size_t(s.computed), s.ids.size());
  prefixes_->enter(*s.table, std::span(s.ids).first(known), s.request.cache_salt);
}

}  // namespace sluice
