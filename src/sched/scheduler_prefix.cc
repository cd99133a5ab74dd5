// What of a sequence need not be computed, because another was computed that began alike (kv/prefix_index.h);
// and what of that is not in the pool any more, but comes from outside it (kv/host_tier.h).
#include <algorithm>
#include <utility>

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
bool Scheduler::comes_soon(const Sequence& candidate, int found_tokens) const {
  if (!prefixes_ || (candidate.request.sampling.prompt_top_logprobs >= 0 && candidate.generated() == 0))
    return false;
  const int least = found_tokens + kWorthWaitingBlocks * layout_.block_tokens;
  for (const Sequence* s : running_) {
    const bool restoring = s->state == SequenceState::running && s->restoring_tokens > 0;
    if ((!s->plannable() && !restoring) || s->order > candidate.order || s->lane() > candidate.lane()) continue;
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
  count_found(state.plan, s, match.tokens);
}

// Once they are there: what did not come, or came spoiled, is no hit. The last token is computed anyway
// (find_prefix).
void Scheduler::count_found(PrefixCounts& counts, Sequence& s, int tokens) const {
  if (std::exchange(s.looked_up, true)) {
    s.resumed_tokens += tokens, counts.resumed_tokens += tokens;
    return;
  }
  s.cached_tokens = tokens, counts.cached_tokens += tokens;
  counts.looked_up_tokens += s.prompt_tokens;
  counts.missed_evicted_tokens +=
      prefixes_->evicted_tokens(s.ids, s.request.cache_salt, tokens, int(s.ids.size()) - 1);
}

// What has landed is never written again. A token that was thrown away is not in `ids`, so what was computed of
// it is not kept.
void Scheduler::keep_landed(Sequence& s) {
  if (!prefixes_ || s.spoiled) return;
  const auto known = std::span<const int32_t>(s.ids).first(std::min(size_t(s.computed), s.ids.size()));
  if (s.keys.capacity() > 0) extend_keys(s.keys, known, s.request.cache_salt, layout_.block_tokens);
  prefixes_->enter(*s.table, known, s.request.cache_salt, s.keys);
}

// What the pool and the host have together, if that is more than the pool has, and sooner copied than computed.
StoredMatch Scheduler::find_stored(const Sequence& s, const PrefixMatch& match) const {
  if (!host_ || s.computes_all || s.keys.empty() ||
      (s.request.sampling.prompt_top_logprobs >= 0 && s.generated() == 0))
    return {};
  if (host_->blocks_on_host() == 0 && host_->blocks_on_disk() == 0) return {};
  const StoredMatch stored = prefixes_->find_stored(s.ids, s.request.cache_salt, s.keys, int(s.ids.size()) - 1);
  if (stored.tokens <= match.tokens || stored.host_bytes + stored.disk_bytes == 0) return {};
  const double recompute =
      step_time_.known() ? step_time_.prompt(match.tokens, stored.tokens - match.tokens) : 0;
  return rates_.worth_restoring(stored.host_bytes, stored.disk_bytes, recompute) ? stored : StoredMatch();
}

void Scheduler::take_over(PlanState& state, Sequence& s, const StoredMatch& match) {
  Restoring& restoring = restoring_[size_t(s.slot)];
  CHECK(restoring.pending.empty());
  restoring.match = match;
  restoring.until = match.disk_tokens > 0 ? state.now + patience(match.tokens) : 0;
  const int whole = prefixes_->take_over(*s.table, match, *host_, s.keys, restoring.pending);
  s.computed = s.planned = whole * layout_.block_tokens;
  s.restoring_tokens = match.tokens;
}

// Pass: blocks that somebody waits for come back, as many as a step may take.
void Scheduler::restore(PlanState& state) {
  if (!host_) return;
  size_t bytes = rates_.step_bytes();
  for (size_t i = 0; i < running_.size();) {
    Sequence* s = running_[i];
    if (s->state == SequenceState::running && s->restoring_tokens > 0) bytes = restore_of(state, *s, bytes);
    if (i < running_.size() && running_[i] == s) ++i;
  }
}

// A disk that hangs must cost no more than computing would have: twice that, and a second where it is little.
TimeNs Scheduler::patience(int tokens) const {
  constexpr TimeNs kLeast = 1'000'000'000;
  return std::max(kLeast, step_time_.known() ? TimeNs(2 * step_time_.prompt(0, tokens)) : 0);
}

TimeNs Scheduler::next_restore_end() const {
  TimeNs at = 0;
  if (host_)
    for (const Sequence* s : running_) {
      // With blocks on their way it is looked at again when they land.
      const bool waits = s->restoring_tokens > 0 && s->steps_in_flight == 0;
      const TimeNs until = waits ? restoring_[size_t(s->slot)].until : 0;
      if (until > 0 && (at == 0 || until < at)) at = until;
    }
  return at;
}

// Returns what is left of `bytes`.
size_t Scheduler::restore_of(PlanState& state, Sequence& s, size_t bytes) {
  if (give_up_restoring(state, s)) return bytes;
  auto& pending = restoring_[size_t(s.slot)].pending;
  std::vector<HostMove>& moves = state.plan.host_moves;
  const size_t before = moves.size();
  for (size_t i = 0; i < pending.size();) {
    const auto [entry, block] = pending[i];
    const HostTier::Where where = host_->where(entry);
    if (where == HostTier::Where::disk) host_->fetch(entry);
    if (where == HostTier::Where::host && bytes > 0 && moves.size() < moves.capacity()) {
      moves.push_back({pool_.ref(block), host_->place(entry), entry, &s});
      bytes -= std::min(bytes, host_->bytes(entry));
      pending[i] = pending.back();
      pending.pop_back();
    } else {
      ++i;
    }
  }
  s.restores_in_flight += int(moves.size() - before);
  s.steps_in_flight += moves.size() > before;
  return bytes;
}

// Where a block turned out to be lost the sequence begins anew, with what is found then; the second time, and
// where files take too long, it computes everything, and how slow they are is learned.
bool Scheduler::give_up_restoring(PlanState& state, Sequence& s) {
  const Restoring& restoring = restoring_[size_t(s.slot)];
  size_t waited_for = 0;  // bytes in files
  bool lost = false;
  for (const PendingBlock& p : restoring.pending) {
    const HostTier::Where where = host_->where(p.entry);
    lost |= where == HostTier::Where::nowhere;
    if (where == HostTier::Where::disk || where == HostTier::Where::coming) waited_for += host_->bytes(p.entry);
  }
  const bool late = waited_for > 0 && restoring.until > 0 && state.now >= restoring.until;
  if (!lost && !late) return false;
  if (s.steps_in_flight > 0) return true;  // blocks are on their way to it: behind them it is looked at again
  if (late) rates_.note_disk(waited_for, patience(s.restoring_tokens));
  const bool again = std::exchange(s.lost_blocks, lost);
  s.computes_all = late || again;
  requeue(&s);
  return true;
}

void Scheduler::stop_restoring(Sequence& s) {
  auto& pending = restoring_[size_t(s.slot)].pending;
  for (const PendingBlock& p : pending) host_->release(p.entry);
  pending.clear();
  s.restoring_tokens = 0;
}

// Last pass: what might be given up goes to the host, before it is. Nothing takes blocks after it, and the next
// step's ops wait for these copies, so nobody need hold the blocks meanwhile. At least twice as many blocks as
// this plan took from the cache: copies that fall behind lose the prefix's beginning, which is taken last, and
// with it all of the prefix.
void Scheduler::save(PlanState& state) {
  if (!host_) return;
  const std::vector<BlockMove>& just_moved = state.plan.moves;
  std::vector<HostMove>& moves = state.plan.host_moves;
  size_t bytes = rates_.step_bytes();
  const uint64_t evicted = pool_.evicted();
  uint64_t due = 2 * (evicted - std::exchange(evicted_before_, evicted));
  BlockId block;
  BlockKey key;
  int group;
  while ((bytes > 0 || due > 0) && moves.size() < moves.capacity() && prefixes_->next_left(block, key, group)) {
    if (const int entry = host_->find(key, group); entry >= 0) {
      host_->touch(entry);
      continue;
    }
    const KvRef ref = pool_.ref(block);
    // Its content comes to this place with the step's moves only.
    if (std::any_of(just_moved.begin(), just_moved.end(), [&](const BlockMove& m) { return m.second == ref; }))
      continue;
    const int entry = host_->reserve(key, group, kv_tier(ref));
    if (entry < 0) continue;
    moves.push_back({ref, host_->place(entry), entry});
    bytes -= std::min(bytes, host_->bytes(entry));
    due -= due > 0;
  }
}

void Scheduler::land_moves(const StepPlan& plan, TimeNs now) {
  pool_.land(plan.moves);
  for (size_t i = 0; i < plan.host_moves.size(); ++i) {
    const HostMove& move = plan.host_moves[i];
    Sequence* s = move.to;
    if (!s) {
      host_->filled(move.entry);
      continue;
    }
    host_->release(move.entry);
    --s->restores_in_flight;
    if (i + 1 < plan.host_moves.size() && plan.host_moves[i + 1].to == s) continue;
    --s->steps_in_flight;
    settle(s, now);
    if (s->state == SequenceState::running && s->restores_in_flight == 0 &&
        restoring_[size_t(s->slot)].pending.empty())
      end_restoring(*s);
  }
}

void Scheduler::end_restoring(Sequence& s) {
  held_tokens_.planned += s.restoring_tokens - s.planned;
  s.computed = s.planned = std::exchange(s.restoring_tokens, 0);
  const StoredMatch& match = restoring_[size_t(s.slot)].match;
  if (!s.looked_up) s.host_tokens = match.host_tokens, s.disk_tokens = match.disk_tokens;
  came_.host_tokens += match.host_tokens, came_.disk_tokens += match.disk_tokens;
  count_found(came_, s, match.tokens);
  keep_landed(s);
}

}  // namespace sluice
