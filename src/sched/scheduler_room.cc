// Slots and blocks: how many a lane may have, what admission promises, and who gives way when there are none.
#include <algorithm>

#include "base/faults.h"
#include "sched/plan_state.h"

namespace sluice {
namespace {

// Who has the right of way: those that were preempted often enough, then by lane, then by arrival. A total
// order: its first can have whatever it needs, so it ends, and in time so does everybody.
bool goes_before(const Sequence& a, const Sequence& b) {
  if (a.is_protected() != b.is_protected()) return a.is_protected();
  if (!a.is_protected() && a.lane() != b.lane()) return a.lane() < b.lane();
  return a.order < b.order;
}

}  // namespace

// What a lane may still take of `free`. Up to its share it may have all that is free; beyond, it leaves the
// others what of their shares they want or used lately.
int Scheduler::slots_for(const PlanState& state, int lane) const {
  int slots = int(free_slots_.size());
  if (gate_.makes_batches()) return slots;
  const auto share = [&](int k) { return lane_share(policy_.lane_weights, k, policy_.max_running); };
  if (state.running[size_t(lane)] < share(lane)) return slots;
  for (int k = 0; k < kLanes; ++k) {
    if (k == lane) continue;
    const int running = state.running[size_t(k)];
    const int wanted = std::max(lately_[size_t(k)].slots, running + queue_.waiting(k));
    slots -= std::max(0, std::min(share(k), wanted) - running);
  }
  return slots;
}

int Scheduler::blocks_for(const PlanState& state, int lane) const {
  int blocks = pool_.free();
  if (gate_.makes_batches()) return blocks;
  const auto share = [&](int k) { return lane_share(policy_.lane_weights, k, pool_.total()); };
  if (state.held[size_t(lane)] < share(lane)) return blocks;
  for (int k = 0; k < kLanes; ++k) {
    if (k == lane) continue;
    const int held = state.held[size_t(k)];
    const int wanted = queue_.waiting(k) > 0 ? share(k) : lately_[size_t(k)].blocks;
    blocks -= std::max(0, std::min(share(k), wanted) - held);
  }
  return blocks;
}

// Blocks are promised at admission though they are taken later: to all that run, what their known tokens still
// need, and one block per group on top. So an admission never causes a preemption before everybody, the
// newcomer included, has got a block's worth of tokens further: preempting and resuming in turns, getting
// nowhere, cannot happen.
int Scheduler::promised(PlanState& state) const {
  if (state.promised >= 0) return state.promised;
  state.promised = 0;
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::running) continue;
    if (s->wanted() > 1)
      state.promised += std::max(0, layout_.settled_blocks(int(s->ids.size())) - s->table->held_slots());
    state.promised += layout_.spare_blocks();
  }
  return state.promised;
}

// The known tokens and the newcomer's own spare block, unless its end comes before it would need one. Blocks
// that it shares with others cost nothing; those that are copied are held until they are.
int Scheduler::needed_by(const Sequence& candidate, const PrefixMatch& match) const {
  const int length = int(candidate.ids.size());
  const int known = layout_.settled_blocks(length);
  int needed = known + std::min(layout_.groups(), layout_.settled_blocks(candidate.longest()) - known);
  if (match.tokens > 0) needed += (match.copied > 0 ? layout_.groups() : 0) - prefixes_->used_by_others(match);
  if (!pool_.tiered()) return needed;
  // Its first tokens are written in full precision, and what it shares may lie alone in many slots.
  const int soon = std::min(length, match.tokens + policy_.step_tokens);
  const int first = layout_.groups() * (layout_.blocks_for(soon) - match.blocks);
  return std::max(needed, first + (match.tokens > 0 ? prefixes_->newly_held(match) : 0));
}

// What comes from outside the pool needs the room that it would need if it were computed.
int Scheduler::needed_by(const Sequence& candidate, const StoredMatch& match) const {
  const PrefixMatch in_pool = {
      .node = match.node, .blocks = match.node_blocks, .tokens = match.node_blocks * layout_.block_tokens};
  const int needed = needed_by(candidate, in_pool);
  if (!pool_.tiered()) return needed;
  const int soon = std::min(int(candidate.ids.size()), match.tokens + policy_.step_tokens);
  const int first = layout_.groups() * (layout_.blocks_for(soon) - match.node_blocks);
  return std::max(needed, first + (in_pool.blocks > 0 ? prefixes_->newly_held(in_pool) : 0));
}

// Nobody makes a protected sequence give way, other protected ones included: so they only run together where
// all of them fit at their longest.
bool Scheduler::may_return(const PlanState& state, const Sequence& candidate) const {
  return !candidate.is_protected() ||
         state.reserved + layout_.peak_blocks(candidate.longest()) <= pool_.total();
}

// The pool is short: others give way until there is enough, unless conversions bring it. Those in flight only
// promise to leave, so the needy one may have to wait a step. False: not now.
bool Scheduler::make_room(PlanState& state, const Sequence& needy, int missing) {
  while (pool_.free() < missing) {
    const int lacks = missing - pool_.free() - pool_.coming() - state.coming_blocks;
    if (lacks <= 0) return false;
    Sequence* victim = victim_for(state, needy, lacks);
    if (!victim) return false;
    give_way(state, victim);
  }
  return true;
}

// One that waits takes its lane's share back from the lanes after it: slots for as many as wait, or blocks for
// itself.
void Scheduler::make_room_for(PlanState& state, const Sequence& candidate, AdmissionStop stop, int needed) {
  if (gate_.makes_batches()) return;
  if (candidate.order > state.barrier) return;
  const int lane = candidate.lane();
  const auto share = [&](int total) { return lane_share(policy_.lane_weights, lane, total); };
  if (stop == AdmissionStop::slots) {
    int missing = std::min(queue_.waiting(lane), share(policy_.max_running) - state.running[size_t(lane)]) -
                  int(free_slots_.size()) - state.coming_slots;
    for (; missing > 0; --missing) {
      Sequence* victim = victim_for(state, candidate, 1);
      if (!victim) return;
      give_way(state, victim);
    }
  } else if (stop == AdmissionStop::blocks && may_return(state, candidate)) {
    if (state.held[size_t(lane)] + needed > share(pool_.total())) return;
    for (int lacks;
         (lacks = needed + promised(state) - pool_.free() - pool_.coming() - state.coming_blocks) > 0;) {
      Sequence* victim = victim_for(state, candidate, lacks);
      if (!victim) return;
      give_way(state, victim);
    }
  }
}

// Of those that must give way: one whose client is not reading anyway; else of the last lane, rather one that
// has made some progress since it was admitted, the one that costs least to compute again for each block that
// is needed; of equals the newest. Who only waits takes nothing from its own lane, and from others what is
// lent.
Sequence* Scheduler::victim_for(const PlanState& state, const Sequence& needy, int missing) const {
  const bool waits = needy.state == SequenceState::waiting, first = !waits && is_first(needy);
  Sequence* best = nullptr;
  bool best_settled = false;
  double best_cost = 0;
  for (size_t i = running_.size(); i-- > 0;) {
    Sequence* s = running_[i];
    if (s == &needy || s->state != SequenceState::running || s->table->held() == 0) continue;
    if (s->paused) return s;
    if (best && best->lane() != s->lane()) break;
    if (s->is_protected() || !goes_before(needy, *s)) continue;
    if (s->lane() == needy.lane() ? waits : !first && !is_lent(state, *s)) continue;
    const bool settled = int(s->ids.size()) - s->resumed_length >= policy_.min_progress;
    // One that shares all its blocks frees none by itself, but may once those it shares with have left.
    const double gained = std::min(s->table->held_alone(pool_), missing);
    const double cost = double(s->planned) / std::max(gained, 0.5);
    if (!best || settled > best_settled || (settled == best_settled && cost < best_cost))
      best = s, best_settled = settled, best_cost = cost;
  }
  return best;
}

// Its lane holds more than its share.
bool Scheduler::is_lent(const PlanState& state, const Sequence& s) const {
  const auto lane = size_t(s.lane());
  return state.running[lane] > lane_share(policy_.lane_weights, int(lane), policy_.max_running) ||
         state.held[lane] > lane_share(policy_.lane_weights, int(lane), pool_.total());
}

bool Scheduler::is_first(const Sequence& needy) const {
  return needy.state == SequenceState::running &&
         std::none_of(running_.begin(), running_.end(), [&](const Sequence* s) {
           return s != &needy && s->state == SequenceState::running && !s->paused && goes_before(*s, needy);
         });
}

void Scheduler::give_way(PlanState& state, Sequence* victim) {
  const auto lane = size_t(victim->lane());
  ++state.plan.preempted;
  ++state.plan.preempted_of[lane];
  victim->forced_preemptions += !victim->paused;
  --state.running[lane];
  state.held[lane] -= victim->table->held_slots();
  state.promised = -1;
  if (victim->steps_in_flight > 0) {
    victim->state = SequenceState::leaving;
    ++state.coming_slots;
    state.coming_blocks += victim->table->held_alone(pool_);
  } else {
    preempt(victim, state.now);
  }
}

// Preemptions that nothing makes necessary (Fault::preempt); of rules that name no request, of who came last.
void Scheduler::meet_faults(PlanState& state) {
  Sequence* last = nullptr;
  for (size_t i = running_.size(); i-- > 0;) {
    Sequence* s = running_[i];
    if (s->state != SequenceState::running || s->is_protected()) continue;
    if (!last) last = s;
    if (faults::met(Fault::preempt, s->request.id, s->generated() + s->samples_in_flight + 1))
      return give_way(state, s);
  }
  if (last && faults::met(Fault::preempt)) give_way(state, last);
}

// Last pass: blocks that have become old go to smaller tiers, the sooner the less room there is. After all that
// takes blocks or gives them up, so that no place is given away that a move of this step reads or fills.
void Scheduler::convert_old(PlanState& state) {
  StepPlan& plan = state.plan;
  if (!pool_.tiered() || (plan.entries.empty() && plan.held_back == 0)) return;
  constexpr double kRoomyShare = 0.125;  // of the pool: with so much free, blocks get as old as they may
  const double share = plan.held_back > 0 ? 0 : double(pool_.free()) / double(pool_.total());
  const KvTiering tiering = layout_.tiering.hurried(std::min(1.0, share / kRoomyShare));
  const int most = layout_.most_moves();
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::running) continue;
    if (!s->table->convert(pool_, tiering, s->computed, plan.moves, most - int(plan.moves.size()))) break;
  }
  if (plan.moves.empty() && plan.held_back > 0) pool_.close_gaps(most, plan.moves);
}

void Scheduler::preempt(Sequence* s, TimeNs now) {
  requeue(s);
  s->preempted_at = now;
  ++s->preemptions;
}

// It begins anew, before all that never ran.
void Scheduler::requeue(Sequence* s) {
  CHECK(s->steps_in_flight == 0);
  release(s);
  s->state = SequenceState::waiting;
  s->computed = s->planned = 0;
  queue_.add_preempted(s);
}

// Slot and blocks go back.
void Scheduler::release(Sequence* s) {
  if (host_) stop_restoring(*s);
  held_tokens_.planned -= s->planned;
  held_tokens_.table_blocks -= s->table->row_blocks();
  if (prefixes_) prefixes_->leave(*s->table);
  s->table->clear(pool_);
  free_slots_.push_back(s->slot);
  s->slot = -1;
  s->table = nullptr;
  const auto at = std::find(running_.begin(), running_.end(), s);
  CHECK(at != running_.end());
  running_.erase(at);
}

}  // namespace sluice
