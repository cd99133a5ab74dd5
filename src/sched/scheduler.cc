#include "sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/faults.h"
#include "sched/plan_state.h"

namespace sluice {
namespace {

// Of what a chunk's context costs: where that takes most of the time that an automatic budget leaves to
// prompts, some is added for rows, since a prompt that paid for all of its keys with every few rows would
// hardly get on.
constexpr double kContextAndRows = 1.25;
// Devices take rows in tiles. Behind a long context a tile begun costs nearly what a full one does, mostly
// keys: chunks are of whole ones there, or of less than one.
constexpr int kTileRows = 64, kLongContext = 8192;
constexpr int kLeastChunk = 8;  // tokens
// A step of lane batch alone: so long at most does someone of another lane wait who comes just then.
constexpr double kLongestBatchStepNs = 16e6;
// Of a target, what single tokens of lanes beside others may fill; the rest is for prompts, those of the first
// lanes first.
constexpr double kTokensOfTarget = 0.5;
constexpr TimeNs kForgetNs = 1'000'000'000;
constexpr TimeNs kPatienceNs = 10'000'000'000;

bool by_lane_and_order(const Sequence* a, const Sequence* b) {
  return a->lane() != b->lane() ? a->lane() < b->lane() : a->order < b->order;
}

void check_weights(const LaneWeights& weights) {
  for (const int w : weights) CHECK(w >= 1 && w <= kMaxLaneWeight);
}

}  // namespace

Scheduler::Scheduler(const Policy& policy, const KvLayout& layout, int blocks, HostTier* host)
    : policy_(policy),
      layout_(layout),
      pool_(blocks, layout.tiering),
      host_(policy.prefix_cache ? host : nullptr),
      gate_(policy.batching),
      queue_(policy.lane_weights) {
  CHECK(policy.max_running > 0 && policy.step_tokens >= policy.max_running);
  CHECK(layout.max_step_tokens >= policy.step_tokens);
  CHECK(layout.peak_blocks(layout.max_length) <= blocks, "one sequence alone must fit the pool");
  set_policy(policy);
  if (policy.prefix_cache) prefixes_ = std::make_unique<PrefixIndex>(layout, pool_);
  if (host_) {
    prefixes_->set_host(host_);
    restoring_.resize(size_t(policy.max_running));
    for (Restoring& r : restoring_) r.pending.reserve(size_t(layout.groups()) * size_t(layout.row_capacity()));
  }
  for (int slot = policy.max_running - 1; slot >= 0; --slot) {
    tables_.push_back(std::make_unique<BlockTable>(layout));
    free_slots_.push_back(slot);
  }
  running_.reserve(size_t(policy.max_running));
  deadlines_.reserve(size_t(policy.max_running) * 2 + size_t(policy.max_queue));
}

void Scheduler::set_policy(const Policy& policy) {
  CHECK(policy.max_running == policy_.max_running && policy.step_tokens == policy_.step_tokens);
  CHECK(policy.max_queue == policy_.max_queue && policy.min_progress == policy_.min_progress);
  CHECK(policy.batching.kind != BatchingKind::windowed ||
        policy.batching.window.max_batch <= policy.max_running);
  check_weights(policy.lane_weights);
  policy_ = policy;
  gate_.set(policy.batching);
  queue_.set_weights(policy.lane_weights);
}

bool Scheduler::add(Sequence* s) {
  if (!has_room()) return false;
  CHECK(s->prompt_tokens > 0 && s->prompt_tokens + s->request.max_tokens <= layout_.max_length);
  s->order = next_order_++;
  s->state = SequenceState::waiting;
  queue_.add(s);
  gate_.note_arrival(*s);
  deadlines_.add(s);
  return true;
}

void Scheduler::plan(TimeNs now, StepPlan& plan) {
  plan.reset();
  static_cast<PrefixCounts&>(plan) = std::exchange(came_, {});
  PlanState state{plan, now, policy_.step_tokens};
  expire(state);
  survey(state);
  find_barrier(state);
  if (faults::armed()) [[unlikely]]
    meet_faults(state);
  if (const int members = gate_.flush(now, quiet(), queue_, plan))
    queue_.choose(members, gate_.last_to_join(queue_));
  for (int lane = 0; lane < kLanes; ++lane) extend_one_token(state, lane);
  limit_prompts(state);
  const bool by_lanes = !gate_.makes_batches() && !queue_.has_chosen();
  const bool has_shares = policy_.max_running >= kLanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    extend_prompts(state, lane);
    if (by_lanes && has_shares) admit_lane(state, lane);
  }
  if (!by_lanes) admit_batch(state);
  if (by_lanes && !has_shares) admit_by_hunger(state);
  restore(state);
  convert_old(state);
  save(state);
}

// Pass 1: deadlines.
void Scheduler::expire(PlanState& state) {
  for (Sequence* s; (s = deadlines_.first()) && s->request.deadline <= state.now;) {
    state.plan.expired.push_back(s);
    end(s, FinishReason::deadline);
  }
}

// Pass 2: who holds what.
void Scheduler::survey(PlanState& state) {
  for (const Sequence* s : running_) {
    const auto lane = size_t(s->lane());
    state.flying[lane] |= s->steps_in_flight > 0 && !s->ended();
    if (s->state != SequenceState::running) {
      ++state.coming_slots;
      state.coming_blocks += s->table->held_alone(pool_);
      continue;
    }
    ++state.running[lane];
    state.held[lane] += s->table->held_slots();
    if (s->is_protected()) state.reserved += layout_.peak_blocks(s->longest());
  }
  const bool forget = state.now - lately_at_ >= kForgetNs;
  if (forget || lately_at_ > state.now) lately_at_ = state.now;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const auto update = [&](int& most, int now) {
      most = std::max(now, forget ? most - (most + 7) / 8 : most);
    };
    update(lately_[lane].slots, state.running[lane]);
    update(lately_[lane].blocks, state.held[lane]);
  }
}

// Shares keep the others' blocks in use for ever, if they are busy. Somebody who needs more than a share, and
// has waited long, is therefore waited for by all that came later.
void Scheduler::find_barrier(PlanState& state) {
  if (gate_.makes_batches()) return;
  for (int lane = 0; lane < kLanes; ++lane) {
    const Sequence* s = queue_.waiting(lane) > 0 ? queue_.next(Lane(lane)) : nullptr;
    if (s && state.now - s->arrived_at >= kPatienceNs &&
        needed_by(*s, PrefixMatch()) > lane_share(policy_.lane_weights, lane, pool_.total()))
      state.barrier = std::min(state.barrier, s->order);
  }
}

std::span<Sequence* const> Scheduler::running_of(int lane) const {
  const auto in = [](int lane) { return [lane](const Sequence* s) { return s->lane() < lane; }; };
  const auto first = std::partition_point(running_.begin(), running_.end(), in(lane));
  return {first, std::partition_point(first, running_.end(), in(lane + 1))};
}

// Whether lanes before this one are in the step, or in one in flight: then it only gets its part of the time.
// Under policies that make batches, members of one run as equals.
bool Scheduler::contended(const PlanState& state, int lane) const {
  if (gate_.makes_batches()) return false;
  for (size_t k = 0; k < size_t(lane); ++k)
    if (state.spent[k] > 0 || state.flying[k]) return true;
  return false;
}

// What a lane may spend beside those before it: their time in the step, by weight. It may go over by one grant,
// so what cannot be cut (a token, a least chunk) is had in some steps only.
void Scheduler::earn(PlanState& state, int lane) {
  double& credit = credit_[size_t(lane)];
  if (!contended(state, lane)) {
    credit = 0;
    return;
  }
  double before = 0;
  int weight = 0;
  for (size_t k = 0; k < size_t(lane); ++k) {
    before += state.spent[k];
    if (state.spent[k] > 0) weight += policy_.lane_weights[k];
  }
  if (weight == 0) return;
  const double due = before * policy_.lane_weights[size_t(lane)] / weight;
  credit = std::min(credit + due - state.earned[size_t(lane)], before);
  state.earned[size_t(lane)] = due;
}

// What is left of a step's target, of which `share` counts. Those in the lanes before were promised that a step
// takes so long, and no less; so within it the others run into no debt. Without a target there is only their
// part.
double Scheduler::left_of_target(const PlanState& state, double share) const {
  if (policy_.target_itl_ns == 0 || !step_time_.known()) return 0;
  return share * double(policy_.target_itl_ns) - spent_so_far(state);
}

// Returns where in running_ it is then: victims that were not in flight are out of the list already, and paused
// ones may have stood before it.
size_t Scheduler::extend(PlanState& state, size_t at, int count) {
  Sequence* s = running_[at];
  if (!take(state, s, count)) ++state.plan.held_back;
  if (at < running_.size() && running_[at] == s) return at;
  return size_t(std::find(running_.begin(), running_.end(), s) - running_.begin());
}

// Pass 3: those that need one token, the oldest first.
void Scheduler::extend_one_token(PlanState& state, int lane) {
  earn(state, lane);
  const bool bounded = contended(state, lane);
  for (size_t i = size_t(running_of(lane).data() - running_.data());
       i < running_.size() && running_[i]->lane() == lane && state.tokens > 0; ++i) {
    Sequence* s = running_[i];
    if (!s->plannable() || s->wanted() != 1) continue;
    if (bounded && credit_[size_t(lane)] <= 0 && left_of_target(state, kTokensOfTarget) <= 0) return;
    i = extend(state, i, 1);
  }
}

namespace {

// What prompts would take, but for the longest of them. For those of lane batch no step becomes longer.
class PromptQueue {
 public:
  void add(const Sequence& s, double ns) {
    if (s.request.lane != Lane::batch) all_ += ns, longest_ = std::max(longest_, ns);
  }
  double behind() const { return all_ - longest_; }

 private:
  double all_ = 0, longest_ = 0;
};

}  // namespace

// How much time prompts may take beside those who generate; also beside one that sits this step out because its
// sample is still in flight (penalties). Prompts of lanes that only get a part of the step do not make it
// longer.
void Scheduler::limit_prompts(PlanState& state) {
  PromptPressure pressure;
  PromptQueue queue;
  int top = kLanes - 1;
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::running || s->paused || s->restoring_tokens > 0) continue;
    if (!gate_.makes_batches()) top = std::min(top, s->lane());
    const int wanted = s->wanted();  // 0: its last token is in flight
    pressure.generating += wanted == 1;
    if (wanted <= 1 || s->lane() > top) continue;
    ++pressure.prompts;
    queue.add(*s, step_time_.prompt(s->planned, wanted));
  }
  // Whose last token this very step computes would wait for it as well; one of a step before is not held up.
  for (const PlanEntry& e : state.plan.entries) pressure.generating += e.sequence->wanted() == 0;
  state.prompt_time = std::numeric_limits<double>::infinity();
  if (pressure.generating == 0) return;
  int waiting = queue_.of_batch();
  if (!gate_.makes_batches())
    for (int lane = waiting = 0; lane <= top; ++lane) waiting += queue_.waiting(lane);
  waiting = std::min(int(free_slots_.size()), waiting);
  pressure.prompts += waiting;
  for (auto s = queue_.begin(); s != queue_.end() && waiting > 0 && queue.behind() < kMostQueueNs; ++s) {
    if (!gate_.makes_batches() && (*s)->lane() > top) continue;
    queue.add(**s, step_time_.prompt(0, (*s)->wanted()));
    --waiting;
  }
  pressure.queue_ns = queue.behind();
  pressure.decode_ns = spent_so_far(state);
  if (policy_.mixed_prompt_tokens) state.tokens = std::min(state.tokens, policy_.mixed_prompt_tokens);
  constexpr int kUntilKnown = 32;  // tokens: tells what a prompt's rows cost, and nobody waits long for it
  state.prompt_time =
      step_time_.known() ? step_limit_ns(pressure, policy_.target_itl_ns) - pressure.decode_ns : kUntilKnown;
}

double Scheduler::spent_so_far(const PlanState& state) const {
  return std::max(step_time_.fixed(), std::accumulate(state.spent.begin(), state.spent.end(), 0.0));
}

// Lane batch has the step to itself, but another lane was there not long ago and may be again.
bool Scheduler::expects_others(const Sequence& s) const {
  return s.request.lane == Lane::batch && !gate_.makes_batches() && step_time_.known() &&
         lately_[size_t(Lane::interactive)].slots + lately_[size_t(Lane::standard)].slots > 0;
}

// What a prompt gets at least, where it gets anything. The automatic budget always leaves a step's first prompt
// a part of it, so however few rows that is, it gets on; eight of them on two cores once made the step beside
// one stream 2.4 times as long. A target may leave nothing, or next to it, and what a step costs may not be
// known.
int Scheduler::least_chunk(const PlanState& state, int most) const {
  const bool gets_on = policy_.target_itl_ns == 0 && step_time_.known() && state.prompts == 0;
  return std::min(gets_on ? 1 : kLeastChunk, most);
}

// Tokens that a prompt gets in this step; the first to get any gets a least chunk, so that prompts always go
// on.
int Scheduler::grant(const PlanState& state, const Sequence& s) const {
  const int most = std::min(s.wanted(), state.tokens);
  double time = state.prompt_time;
  if (policy_.target_itl_ns == 0 && state.prompts == 0)
    time = std::max(time, kContextAndRows * step_time_.prompt_context(s.planned));
  const bool bounded = contended(state, s.lane());
  if (bounded) {
    const double own = std::max(credit_[size_t(s.lane())], left_of_target(state, 1));
    if (own <= 0) return 0;
    time = std::min(time, own);
  } else if (expects_others(s)) {
    const double spent = spent_so_far(state);
    time = std::min(time, std::max(kLongestBatchStepNs - spent, 0.7 * spent));
  }
  int count = step_time_.prompt_tokens(time, s.planned, most);
  if (s.planned >= kLongContext && count > kTileRows && count < most) count -= count % kTileRows;
  const int least = least_chunk(state, most);
  if (count >= least) return count;
  return bounded || state.prompts == 0 ? least : 0;
}

// Pass 4: prompts that have begun, the oldest first.
void Scheduler::extend_prompts(PlanState& state, int lane) {
  earn(state, lane);
  for (size_t i = size_t(running_of(lane).data() - running_.data());
       i < running_.size() && running_[i]->lane() == lane && state.tokens > 0; ++i) {
    Sequence* s = running_[i];
    if (!s->plannable() || s->wanted() <= 1) continue;
    const int count = grant(state, *s);
    if (count == 0) return;
    i = extend(state, i, count);
  }
}

// Pass 5: who waits in a lane, in order. The first that does not fit keeps out those of its lane behind it:
// nobody is overtaken for ever.
void Scheduler::admit_lane(PlanState& state, int lane) {
  if (queue_.waiting(lane) == 0) return;
  state.promised = -1;
  Sequence* s = nullptr;
  while ((s = queue_.next(Lane(lane))) && admit(state, s)) {
  }
  if (!s && queue_.waiting(lane) > 0 && state.plan.stopped_by == AdmissionStop::none)
    state.plan.stopped_by = AdmissionStop::slow_client;
}

// Slots are too few for each lane to have one of its own: they take turns by weight.
void Scheduler::admit_by_hunger(PlanState& state) {
  PerLane<bool> waits;
  for (int lane = 0; lane < kLanes; ++lane) waits[size_t(lane)] = queue_.waiting(lane) > 0;
  for (int lane; (lane = queue_.hungriest(waits)) >= 0; waits[size_t(lane)] = false) admit_lane(state, lane);
}

// The same for a batch's members.
void Scheduler::admit_batch(PlanState& state) {
  if (queue_.empty()) return;
  state.promised = -1;
  while (Sequence* s = queue_.next_of_batch())
    if (!admit(state, s)) return;
  if (!queue_.empty() && state.plan.stopped_by == AdmissionStop::none)
    state.plan.stopped_by =
        !queue_.fresh().empty() && gate_.makes_batches() ? gate_.closed() : AdmissionStop::slow_client;
}

bool Scheduler::admit(PlanState& state, Sequence* s) {
  const int lane = s->lane();
  AdmissionStop stop = slots_for(state, lane) <= 0                  ? AdmissionStop::slots
                       : state.tokens <= 0 || grant(state, *s) == 0 ? AdmissionStop::budget
                                                                    : AdmissionStop::none;
  PrefixMatch match;
  StoredMatch stored;
  int needed = 0;
  if (stop == AdmissionStop::none) {
    match = find_prefix(*s);
    stored = find_stored(*s, match);
    const auto lacks = [&] {
      needed = stored.blocks > 0 ? needed_by(*s, stored) : needed_by(*s, match);
      return needed + promised(state) > blocks_for(state, lane);
    };
    if (stored.blocks > 0 && lacks()) stored = {};
    // A block that is copied needs room besides its copy, and one sequence alone must always fit.
    if (match.copied > 0 && lacks()) match.tokens -= std::exchange(match.copied, 0);
    // Nor must what is found keep it from starting because it lies scattered over many slots.
    if (match.blocks > 0 && pool_.tiered() && lacks()) {
      const PrefixMatch found = std::exchange(match, {});
      if (lacks()) match = found;
    }
    stop = comes_soon(*s, std::max(match.tokens, stored.tokens))           ? AdmissionStop::prefix
           : lacks() || !may_return(state, *s) || s->order > state.barrier ? AdmissionStop::blocks
                                                                           : AdmissionStop::none;
  }
  if (stop != AdmissionStop::none) {
    if (state.plan.stopped_by == AdmissionStop::none) state.plan.stopped_by = stop;
    make_room_for(state, *s, stop, needed);
    return false;
  }
  start(state, s, match, stored);
  ++state.plan.admitted;
  if (s->restoring_tokens > 0) return true;
  // What it found in the cache may leave it less time than a newcomer was granted.
  const int count = std::max(grant(state, *s), least_chunk(state, std::min(s->wanted(), state.tokens)));
  CHECK(take(state, s, count), "an admitted sequence fits");
  return true;
}

// Gives `count` more tokens to a sequence, and the blocks they need.
bool Scheduler::take(PlanState& state, Sequence* s, int count) {
  const int length = s->planned + count;
  const int missing = s->table->missing(length);
  if (missing > pool_.free() && !make_room(state, *s, missing)) return false;
  held_tokens_.table_blocks -= s->table->row_blocks();
  CHECK(s->table->grow(pool_, length));
  held_tokens_.table_blocks += s->table->row_blocks();
  held_tokens_.planned += count;
  const bool samples = s->request.max_tokens > 0 && length == int(s->ids.size()) + s->samples_in_flight;
  state.plan.entries.push_back({s, s->planned, count, samples});
  state.plan.tokens += count;
  state.tokens -= count;
  const auto lane = size_t(s->lane());
  state.held[lane] += missing;
  const bool prompt = s->wanted() > 1;
  const bool is_within = left_of_target(state, prompt ? 1 : kTokensOfTarget) > 0;
  if (state.plan.entries.size() == 1) state.spent[lane] += step_time_.fixed();
  const double time = prompt ? step_time_.prompt(s->planned, count) : step_time_.one_token(s->planned);
  state.spent[lane] += time;
  if (prompt) state.prompt_time -= time, ++state.prompts;
  if (contended(state, int(lane)))
    credit_[lane] -= is_within ? std::min(time, std::max(credit_[lane], 0.0)) : time;
  s->planned = length;
  ++s->steps_in_flight;
  s->samples_in_flight += samples;
  return true;
}

void Scheduler::start(PlanState& state, Sequence* s, const PrefixMatch& match, const StoredMatch& stored) {
  if (s->waits_as != WaitsAs::preempted) s->admitted_at = state.now;
  queue_.remove(s);
  CHECK(running_.size() < running_.capacity());
  running_.insert(std::upper_bound(running_.begin(), running_.end(), s, by_lane_and_order), s);
  s->slot = free_slots_.back();
  free_slots_.pop_back();
  s->table = tables_[size_t(s->slot)].get();
  s->state = SequenceState::running;
  s->resumed_length = int(s->ids.size());
  const auto lane = size_t(s->lane());
  ++state.running[lane];
  lately_[lane].slots = std::max(lately_[lane].slots, state.running[lane]);
  if (stored.blocks > 0)
    take_over(state, *s, stored);
  else
    take_over(state, *s, match);
  held_tokens_.planned += s->planned;
  held_tokens_.table_blocks += s->table->row_blocks();
  state.held[lane] += s->table->held_slots();
  state.promised +=
      std::max(0, layout_.settled_blocks(int(s->ids.size())) - s->table->held_slots()) + layout_.spare_blocks();
  if (s->is_protected()) state.reserved += layout_.peak_blocks(s->longest());
}

void Scheduler::land(const PlanEntry& entry, int32_t sampled, FinishReason reason, TimeNs now) {
  Sequence* s = entry.sequence;
  CHECK(s->steps_in_flight > 0 && s->computed == entry.first, "steps land in order");
  --s->steps_in_flight;
  s->samples_in_flight -= entry.samples;
  s->computed = entry.first + entry.count;
  const bool wanted = !s->ended();
  if (wanted) {
    CHECK(entry.samples == (sampled >= 0));
    if (sampled >= 0) {
      CHECK(s->ids.size() < s->ids.capacity());
      s->ids.push_back(sampled);
    }
  }
  keep_landed(*s);
  if (wanted && reason != FinishReason::none) end(s, reason);
  settle(s, now);
  if (s->table) s->table->drop_behind(pool_, s->computed);
}

// What becomes of it once nothing of it is in flight any more.
void Scheduler::settle(Sequence* s, TimeNs now) {
  if (s->steps_in_flight > 0) return;
  if (s->ended()) {
    if (s->slot >= 0) release(s);
  } else if (s->state == SequenceState::leaving) {
    preempt(s, now);
  }
}

void Scheduler::end(Sequence* s, FinishReason reason) {
  CHECK(!s->ended() && reason != FinishReason::none);
  const bool queued = s->state == SequenceState::waiting;
  s->state = SequenceState::ended;
  s->finish = reason;
  deadlines_.remove(s);
  if (queued)
    queue_.drop(s);
  else if (s->steps_in_flight == 0)
    release(s);
  if (s->charged_tokens > 0) queue_.settle(*s);
}

}  // namespace sluice
