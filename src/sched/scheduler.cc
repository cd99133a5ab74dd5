#include "sched/scheduler.h"

#include <algorithm>

namespace sluice {
namespace {

void insert_by_order(std::vector<Sequence*>& list, Sequence* s) {
  CHECK(list.size() < list.capacity());
  list.insert(std::upper_bound(list.begin(), list.end(), s,
                               [](const Sequence* a, const Sequence* b) { return a->order < b->order; }),
              s);
}

void erase(std::vector<Sequence*>& list, Sequence* s) {
  const auto it = std::find(list.begin(), list.end(), s);
  CHECK(it != list.end());
  list.erase(it);
}

}  // namespace

// What the passes over one plan share.
struct Scheduler::PlanState {
  StepPlan& plan;
  TimeNs now;
  int budget;      // tokens left in the step
  int coming = 0;  // blocks of sequences that leave, or have ended, once they land
};

Scheduler::Scheduler(const Policy& policy, const KvLayout& layout, int blocks)
    : policy_(policy), layout_(layout), pool_(blocks), gate_(policy.batching) {
  CHECK(policy.max_running > 0 && policy.step_tokens >= policy.max_running);
  CHECK(layout.max_step_tokens >= policy.step_tokens);
  CHECK(policy.batching.kind != BatchingKind::windowed ||
        policy.batching.window.max_batch <= policy.max_running);
  CHECK(layout.peak_blocks(layout.max_length) <= blocks, "one sequence alone must fit the pool");
  for (int slot = policy.max_running - 1; slot >= 0; --slot) {
    tables_.push_back(std::make_unique<BlockTable>(layout));
    free_slots_.push_back(slot);
  }
  running_.reserve(size_t(policy.max_running));
  waiting_.reserve(size_t(policy.max_queue) + size_t(policy.max_running));
}

bool Scheduler::add(Sequence* s) {
  if (!has_room()) return false;
  CHECK(s->prompt_tokens > 0 && s->prompt_tokens + s->request.max_tokens <= layout_.max_length);
  s->order = next_order_++;
  s->state = SequenceState::waiting;
  waiting_.push_back(s);
  gate_.note_arrival(*s);
  ++fresh_;
  const TimeNs deadline = s->request.deadline;
  if (deadline && (!next_deadline_ || deadline < next_deadline_)) next_deadline_ = deadline;
  return true;
}

void Scheduler::plan(TimeNs now, StepPlan& plan) {
  plan.reset();
  PlanState state{plan, now, policy_.step_tokens};
  for (const Sequence* s : running_)
    if (s->state != SequenceState::running) state.coming += s->table->held();
  expire(state);
  gate_.ask(now, !running_.empty(), waiting_, plan);
  extend(state, true);
  if (const int generating = policy_.mixed_prompt_tokens ? count_generating() : 0)
    state.budget = std::min(state.budget, mixed_budget(generating));
  extend(state, false);
  admit(state);
}

// Those whose next token others' prompts would hold up; also one that sits this step out because its sample is
// still in flight (penalties).
int Scheduler::count_generating() const {
  return int(std::count_if(running_.begin(), running_.end(), [](const Sequence* s) {
    return s->state == SequenceState::running && !s->paused && s->wanted() <= 1;
  }));
}

// Prompt tokens beside sequences that generate and should not wait long. A step of few rows is bound
// by reading weights, so a small chunk is nearly free there; as many tokens as keep up with those that end (a
// few per generating sequence) do while few wait; a backlog brings it up to the limit.
int Scheduler::mixed_budget(int generating) const {
  constexpr int kLeastChunk = 128, kPerSequence = 5, kBacklogSteps = 4;
  const int64_t enough = int64_t(kBacklogSteps) * policy_.mixed_prompt_tokens;
  int64_t backlog = 0;
  for (const Sequence* s : running_)
    if (s->state == SequenceState::running && !s->paused && s->wanted() > 1) backlog += int64_t(s->ids.size());
  for (size_t i = 0; i < waiting_.size() && backlog < enough && gate_.lets_in(*waiting_[i]); ++i)
    backlog += waiting_[i]->wanted();
  const int64_t chunk = std::max<int64_t>(int64_t(kPerSequence) * generating, backlog / kBacklogSteps);
  return int(std::min<int64_t>(std::max<int64_t>(chunk, kLeastChunk), policy_.mixed_prompt_tokens));
}

// Pass 1: deadlines.
void Scheduler::expire(PlanState& state) {
  if (!next_deadline_ || state.now < next_deadline_) return;
  next_deadline_ = 0;
  auto& expired = state.plan.expired;
  for (const auto* list : {&running_, &waiting_}) {
    for (Sequence* s : *list) {
      const TimeNs deadline = s->request.deadline;
      if (s->ended() || !deadline) continue;
      if (deadline <= state.now) {
        expired.push_back(s);
      } else if (!next_deadline_ || deadline < next_deadline_) {
        next_deadline_ = deadline;
      }
    }
  }
  for (Sequence* s : expired) end(s, FinishReason::deadline);
}

// Passes 2 and 3: sequences that run go on, the oldest first; those that need one token before those with more.
void Scheduler::extend(PlanState& state, bool one_token) {
  for (size_t i = 0; i < running_.size() && state.budget > 0; ++i) {
    Sequence* s = running_[i];
    const int wanted = s->plannable() ? s->wanted() : 0;
    if (wanted <= 0 || (wanted == 1) != one_token) continue;
    const size_t before = running_.size();
    if (!take(state, s, std::min(wanted, state.budget))) ++state.plan.held_back;
    // Victims that were not in flight are out of the list already; paused ones may have stood before this one.
    if (running_.size() != before)
      i = size_t(std::find(running_.begin(), running_.end(), s) - running_.begin());
  }
}

// Pass 4: the queue, in order. The first that does not fit keeps out those behind it: nobody is overtaken for
// ever.
void Scheduler::admit(PlanState& state) {
  size_t at = 0;
  while (at < waiting_.size()) {
    Sequence* s = waiting_[at];
    if (s->paused) {
      state.plan.stopped_by = AdmissionStop::slow_client;
      ++at;
      continue;
    }
    const AdmissionStop stop = !gate_.lets_in(*s)    ? gate_.closed()
                               : free_slots_.empty() ? AdmissionStop::slots
                               : state.budget <= 0   ? AdmissionStop::budget
                               : !fits(*s)           ? AdmissionStop::blocks
                                                     : AdmissionStop::none;
    state.plan.stopped_by = stop;
    if (stop != AdmissionStop::none) return;
    start(s, state.now);
    ++state.plan.admitted;
    CHECK(take(state, s, std::min(s->wanted(), state.budget)), "an admitted sequence fits");
  }
}

// Blocks are promised at admission though they are taken later: to all that run, what their known tokens still
// need, and one block per group on top. So an admission never causes a preemption before everybody, the
// newcomer included, has got a block's worth of tokens further: preempting and resuming in turns, getting
// nowhere, cannot happen.
bool Scheduler::fits(const Sequence& candidate) const {
  int promised = layout_.peak_blocks(int(candidate.ids.size()));
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::running) continue;
    if (s->wanted() > 1) promised += std::max(0, layout_.peak_blocks(int(s->ids.size())) - s->table->held());
    promised += layout_.groups();
  }
  // The newcomer's own spare block, unless its end comes before it would need one.
  const int last = candidate.prompt_tokens + candidate.request.max_tokens;
  promised +=
      std::min(layout_.groups(), layout_.peak_blocks(last) - layout_.peak_blocks(int(candidate.ids.size())));
  return promised <= pool_.free();
}

// Gives `count` more tokens to a sequence, and the blocks they need.
bool Scheduler::take(PlanState& state, Sequence* s, int count) {
  const int length = s->planned + count;
  const int missing = s->table->missing(length);
  if (missing > pool_.free() && !make_room(state, *s, missing)) return false;
  CHECK(s->table->grow(pool_, length));
  const bool samples = s->request.max_tokens > 0 && length == int(s->ids.size()) + s->samples_in_flight;
  state.plan.entries.push_back({s, s->planned, count, samples});
  state.plan.tokens += count;
  state.budget -= count;
  s->planned = length;
  ++s->steps_in_flight;
  s->samples_in_flight += samples;
  return true;
}

// The pool is short: newer sequences give way until there is enough. Those in flight only promise to leave, so
// the needy one may have to wait a step. False: not now.
bool Scheduler::make_room(PlanState& state, const Sequence& needy, int missing) {
  while (pool_.free() < missing) {
    if (pool_.free() + state.coming >= missing) return false;
    Sequence* victim = victim_for(needy);
    if (!victim) return false;
    ++state.plan.preempted;
    if (victim->steps_in_flight > 0) {
      victim->state = SequenceState::leaving;
      state.coming += victim->table->held();
    } else {
      preempt(victim, state.now);
    }
  }
  return true;
}

// Who costs least: one whose client is not reading anyway; else the newest, whose recomputing is the shortest
// as a rule, but rather not one that has hardly begun again. Never one older than the needy: so the oldest
// always goes on, and with it, in the end, everybody.
Sequence* Scheduler::victim_for(const Sequence& needy) const {
  Sequence* newest = nullptr;
  Sequence* settled = nullptr;
  for (size_t i = running_.size(); i-- > 0;) {
    Sequence* s = running_[i];
    if (s == &needy || s->state != SequenceState::running || s->table->held() == 0) continue;
    if (s->paused) return s;
    if (s->order < needy.order) continue;
    if (!newest) newest = s;
    if (!settled && int(s->ids.size()) - s->resumed_length >= policy_.min_progress) settled = s;
  }
  return settled ? settled : newest;
}

void Scheduler::land(const PlanEntry& entry, int32_t sampled, FinishReason reason, TimeNs now) {
  Sequence* s = entry.sequence;
  CHECK(s->steps_in_flight > 0 && s->computed == entry.first, "steps land in order");
  --s->steps_in_flight;
  s->samples_in_flight -= entry.samples;
  s->computed = entry.first + entry.count;
  if (!s->ended()) {
    CHECK(entry.samples == (sampled >= 0));
    if (sampled >= 0) {
      CHECK(s->ids.size() < s->ids.capacity());
      s->ids.push_back(sampled);
    }
    if (reason != FinishReason::none) end(s, reason);
  }
  if (s->steps_in_flight == 0 && s->ended()) {
    if (s->slot >= 0) release(s);
  } else if (s->steps_in_flight == 0 && s->state == SequenceState::leaving) {
    preempt(s, now);
  } else {
    s->table->drop_behind(pool_, s->computed);
  }
}

void Scheduler::end(Sequence* s, FinishReason reason) {
  CHECK(!s->ended() && reason != FinishReason::none);
  const bool queued = s->state == SequenceState::waiting;
  s->state = SequenceState::ended;
  s->finish = reason;
  if (queued) {
    erase(waiting_, s);
    fresh_ -= s->preemptions == 0;
  } else if (s->steps_in_flight == 0) {
    release(s);
  }
}

void Scheduler::start(Sequence* s, TimeNs now) {
  erase(waiting_, s);
  insert_by_order(running_, s);
  fresh_ -= s->preemptions == 0;
  s->slot = free_slots_.back();
  free_slots_.pop_back();
  s->table = tables_[size_t(s->slot)].get();
  s->state = SequenceState::running;
  s->resumed_length = int(s->ids.size());
  if (s->preemptions == 0)
    s->admitted_at = now;
  else
    s->preempted_ns += now - s->preempted_at;
}

void Scheduler::preempt(Sequence* s, TimeNs now) {
  CHECK(s->steps_in_flight == 0);
  release(s);
  s->state = SequenceState::waiting;
  s->computed = s->planned = 0;
  s->preempted_at = now;
  ++s->preemptions;
  insert_by_order(waiting_, s);
}

// Slot and blocks go back.
void Scheduler::release(Sequence* s) {
  s->table->clear(pool_);
  free_slots_.push_back(s->slot);
  s->slot = -1;
  s->table = nullptr;
  erase(running_, s);
}

}  // namespace sluice
