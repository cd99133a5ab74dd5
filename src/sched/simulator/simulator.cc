#include "sched/simulator/simulator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <queue>

#include "base/check.h"
#include "sched/simulator/random.h"

namespace sluice {
namespace {

constexpr size_t kStepsUnderWay = 2;
constexpr int kOutboxEvents = 128;  // a client this far behind pauses its sequence
constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
constexpr int32_t kSampled = 7;  // no id ends a simulated answer

struct Simulated : Sequence {
  Simulated(Request wish, size_t number) : Sequence(std::move(wish)), number(number) {}
  size_t number;          // in the trace
  TimeNs last_token = 0;  // as the client sees it
  TimeNs mask_made = 0;
  bool admission_seen = false;
};

// A time at which something of request `number` happens; the earliest first, then by number.
struct Due {
  TimeNs at = 0;
  size_t number = 0;
  bool operator>(const Due& other) const { return at != other.at ? at > other.at : number > other.number; }
};
using Agenda = std::priority_queue<Due, std::vector<Due>, std::greater<>>;

struct Flight {
  StepPlan plan;
  TimeNs takes = 0, ends_at = 0;
};

// What a request says to the engine. Ids beyond the shared prefix are of its own, so that nothing else of it is
// found in a cache.
Request wish_of(const TracedRequest& traced, size_t number, TimeNs arrival) {
  Request wish;
  wish.prompt.resize(size_t(traced.input));
  for (int i = 0; i < traced.input; ++i) {
    const uint64_t of = i < traced.shared_prefix ? uint64_t(traced.tenant) : 0x10000u + number;
    wish.prompt[size_t(i)] = int32_t((of * 0x9e3779b97f4a7c15u + uint64_t(i) * 0xbf58476d1ce4e5b9u) >> 34);
  }
  wish.max_tokens = traced.output;
  wish.ignore_eos = true;
  wish.lane = traced.lane;
  wish.tenant = traced.tenant;
  if (traced.timeout_ns > 0) wish.deadline = arrival + traced.timeout_ns;
  return wish;
}

class Simulation {
 public:
  Simulation(const SimulationSetup& setup, const Trace& trace, const SimulationHooks& hooks)
      : setup_(setup),
        trace_(trace),
        hooks_(hooks),
        scheduler_(setup.policy, setup.layout, setup.blocks),
        luck_(setup.seed, 5),
        live_(trace.requests.size()) {
    CHECK(setup.max_requests <= setup.policy.max_queue);
    result_.requests.resize(trace.requests.size());
    result_.steps_of.assign(size_t(setup.policy.max_running) + 1, 0);
    result_.batches_of = result_.steps_of;
    for (Flight& flight : flights_) {
      flight.plan.reserve(setup.policy.max_running, setup.policy.max_queue, setup.layout);
      free_.push_back(&flight);
    }
  }

  SimulationResult run() {
    // A closed loop's clients begin together.
    const size_t first = trace_.concurrency ? size_t(trace_.concurrency) : trace_.requests.size();
    while (next_ < std::min(first, trace_.requests.size()))
      send(trace_.concurrency ? 0 : trace_.requests[next_].at);
    while (gone_ < trace_.requests.size()) turn();
    CHECK(scheduler_.idle() && under_way_.empty(), "nothing is left of requests that have ended");
    return std::move(result_);
  }

 private:
  void turn() {
    take_up_policies();
    take_arrivals();
    drop_cancelled();
    const bool committed = commit_finished();
    const bool launched = launch_next();
    tell_clients();
    if (hooks_.turned) hooks_.turned(scheduler_, now_);
    if (committed || launched) return;
    const TimeNs next = next_event();
    CHECK(next > now_ || gone_ == trace_.requests.size(), "the virtual clock moves on");
    if (next > now_ && gone_ < trace_.requests.size()) now_ = next;
  }

  // Its client sends the next request of the trace.
  void send(TimeNs at) {
    SimulatedRequest& r = result_.requests[next_];
    r.sent = at;
    if (next_ == 0 || at < result_.began) result_.began = at;
    arrivals_.push({at + setup_.host.request_ns, next_});
    ++next_;
  }

  void take_up_policies() {
    for (; policies_ < setup_.changes.size() && setup_.changes[policies_].at <= now_; ++policies_)
      scheduler_.set_policy(setup_.changes[policies_].policy);
  }

  void take_arrivals() {
    while (!arrivals_.empty() && arrivals_.top().at <= now_) {
      const Due due = arrivals_.top();
      arrivals_.pop();
      if (!enters(due)) {
        result_.requests[due.number].refused = true;
        leave(due.number, now_);
        continue;
      }
      ++in_engine_;
      const TracedRequest& traced = trace_.requests[due.number];
      auto sequence = std::make_unique<Simulated>(wish_of(traced, due.number, due.at), due.number);
      sequence->needs_host_state = traced.host_state || traced.mask_ns > 0;
      sequence->arrived_at = due.at;
      CHECK(scheduler_.add(sequence.get()), "max_requests is at most max_queue");
      live_[due.number] = std::move(sequence);
      if (traced.cancel_ns > 0) cancels_.push({due.at + traced.cancel_ns, due.number});
      if (traced.reads_per_s > 0) slow_.push_back(due.number);
      if (traced.mask_ns > 0) masked_.push_back(due.number);
    }
    result_.peak_waiting = std::max(result_.peak_waiting, int(scheduler_.waiting().size()));
  }

  bool enters(const Due& due) {
    if (hooks_.admits && !hooks_.admits(due.number, due.at)) return false;
    if (in_engine_ < setup_.max_requests) return true;
    if (hooks_.left) hooks_.left(due.number);
    return false;
  }

  void drop_cancelled() {
    while (!cancels_.empty() && cancels_.top().at <= now_) {
      Simulated* s = live_[cancels_.top().number].get();
      cancels_.pop();
      if (s && !s->ended()) end_without_token(*s, FinishReason::cancelled);
    }
  }

  bool commit_finished() {
    if (under_way_.empty() || under_way_.front()->ends_at + setup_.host.notice_ns > now_) return false;
    Flight* flight = under_way_.front();
    under_way_.pop_front();
    scheduler_.note_step(flight->plan, flight->takes);
    scheduler_.land_moves(flight->plan, now_);
    for (const PlanEntry& entry : flight->plan.entries) land(entry);
    now_ += setup_.host.commit_ns + TimeNs(flight->plan.entries.size()) * setup_.host.commit_sequence_ns;
    free_.push_back(flight);
    return true;
  }

  void land(const PlanEntry& entry) {
    auto& s = static_cast<Simulated&>(*entry.sequence);
    if (s.ended()) {
      result_.discarded += entry.samples;
      scheduler_.land(entry, -1, FinishReason::none, now_);
      if (s.gone()) forget(s);
      return;
    }
    const bool prompt_only = s.request.max_tokens == 0 && entry.first + entry.count == s.prompt_tokens;
    const bool last = prompt_only || (entry.samples && s.generated() + 1 >= s.request.max_tokens);
    scheduler_.land(entry, entry.samples ? kSampled : -1, last ? FinishReason::length : FinishReason::none,
                    now_);
    if (entry.samples) told_.push_back(s.number);
    if (entry.samples) s.mask_made = now_ + trace_.requests[s.number].mask_ns;
    if (last) ended(s);
    if (s.gone()) forget(s);
  }

  bool launch_next() {
    if (free_.empty()) return false;
    pause_slow_clients();
    look_at_masks();
    Flight* flight = free_.front();
    StepPlan& plan = flight->plan;
    scheduler_.plan(now_, plan);
    for (Sequence* s : plan.expired) end_without_token(static_cast<Simulated&>(*s), FinishReason::deadline);
    if (hooks_.planned) hooks_.planned(scheduler_, plan, now_);
    if (plan.batch) ++result_.batches_of[size_t(plan.batch)];
    if (plan.empty()) return !plan.expired.empty();
    free_.pop_front();
    note(plan);
    const StepWork work = work_of(plan, setup_.layout);
    now_ += setup_.host.plan_ns + work.sequences * setup_.host.plan_sequence_ns;
    const TimeNs begins = std::max(now_, device_free_) + setup_.host.launch_ns;
    const TimeNs takes = hooks_.takes ? hooks_.takes(plan) : step_ns(setup_.cost, work, luck_.uniform());
    flight->takes = takes;
    flight->ends_at = device_free_ = begins + takes;
    result_.device_ns += takes;
    under_way_.push_back(flight);
    return true;
  }

  void note(const StepPlan& plan) {
    ++result_.steps;
    ++result_.steps_of[plan.entries.size()];
    result_.computed_tokens += plan.tokens;
    result_.preemptions += plan.preempted;
    result_.peak_blocks = std::max(result_.peak_blocks, scheduler_.blocks().used());
    for (const PlanEntry& entry : plan.entries) {
      auto& s = static_cast<Simulated&>(*entry.sequence);
      if (s.admission_seen) continue;
      s.admission_seen = true;
      result_.requests[s.number].queue_ns = s.admitted_at - s.arrived_at;
    }
  }

  // Events that a slow client has not taken by now.
  int unread(const Simulated& s) const {
    const SimulatedRequest& r = result_.requests[s.number];
    if (!r.first_token) return s.generated();
    const double taken = ms(now_ - r.first_token) * 1e-3 * trace_.requests[s.number].reads_per_s;
    return s.generated() - int(std::min(taken, double(s.generated())));
  }
  void pause_slow_clients() {
    for (const size_t number : slow_) {
      Simulated* s = live_[number].get();
      if (s && !s->ended()) s->paused = kOutboxEvents - unread(*s) < s->samples_in_flight + 2;
    }
    if (gone_ > swept_ + 1000) {
      std::erase_if(slow_, [&](size_t number) { return !live_[number]; });
      swept_ = gone_;
    }
  }
  // When the first of those that are paused has read enough to go on.
  TimeNs next_unpause() const {
    TimeNs next = kNever;
    for (const size_t number : slow_) {
      const Simulated* s = live_[number].get();
      if (!s || s->ended() || !s->paused) continue;
      const double reads = s->generated() + s->samples_in_flight + 2 - kOutboxEvents + 1;
      const double after = reads / trace_.requests[number].reads_per_s * 1e9;
      next = std::min(next, std::max(now_ + 1, result_.requests[number].first_token + TimeNs(after)));
    }
    return next;
  }

  void look_at_masks() {
    for (const size_t number : masked_)
      if (Simulated* s = live_[number].get()) s->awaits_mask = s->mask_made > now_;
    if (masked_.size() > 1000) std::erase_if(masked_, [&](size_t number) { return !live_[number]; });
  }
  TimeNs next_mask() const {
    TimeNs next = kNever;
    for (const size_t number : masked_)
      if (const Simulated* s = live_[number].get(); s && !s->ended() && s->mask_made > now_)
        next = std::min(next, s->mask_made);
    return next;
  }

  TimeNs next_event() const {
    TimeNs next = kNever;
    if (!arrivals_.empty()) next = std::min(next, arrivals_.top().at);
    if (!cancels_.empty()) next = std::min(next, cancels_.top().at);
    if (policies_ < setup_.changes.size()) next = std::min(next, setup_.changes[policies_].at);
    if (!under_way_.empty()) next = std::min(next, under_way_.front()->ends_at + setup_.host.notice_ns);
    if (free_.empty()) return next;
    for (const TimeNs wake : {scheduler_.next_deadline(), scheduler_.next_flush()})
      if (wake > 0) next = std::min(next, std::max(wake, now_ + 1));
    return std::min({next, next_unpause(), next_mask()});
  }

  void end_without_token(Simulated& s, FinishReason reason) {
    if (!s.ended()) scheduler_.end(&s, reason);
    ended(s);
    if (s.gone()) forget(s);
  }

  // At the end of a turn, as the engine notifies: tokens first, then ends.
  void tell_clients() {
    TimeNs seen = now_ + setup_.host.answer_ns;
    for (const size_t number : told_) {
      SimulatedRequest& r = result_.requests[number];
      ++r.tokens;
      if (r.first_token)
        result_.between_tokens_ms.push_back(float(ms(seen - last_seen_[number])));
      else
        r.first_token = seen;
      last_seen_[number] = seen;
      if (hooks_.told) hooks_.told(number, seen);
      seen += setup_.host.answer_sequence_ns;
    }
    told_.clear();
    // The last token says that it was the last.
    for (const size_t number : ends_) leave(number, std::max(last_seen_[number], now_ + setup_.host.answer_ns));
    ends_.clear();
  }

  void ended(const Simulated& s) {
    SimulatedRequest& r = result_.requests[s.number];
    r.finish = s.finish;
    r.preemptions = s.preemptions;
    r.cached_tokens = s.cached_tokens;
    ends_.push_back(s.number);
    --in_engine_;
  }

  // Its client has the last word of it, and in a closed loop sends the next.
  void leave(size_t number, TimeNs seen) {
    SimulatedRequest& r = result_.requests[number];
    r.ended = seen;
    result_.ended = std::max(result_.ended, seen);
    if (!r.refused && hooks_.left) hooks_.left(number);
    ++answered_;
    if (r.refused) ++gone_;
    if (trace_.concurrency && next_ < trace_.requests.size()) send(seen);
  }

  void forget(Simulated& s) {
    ++gone_;
    live_[s.number].reset();
  }

  const SimulationSetup& setup_;
  const Trace& trace_;
  const SimulationHooks& hooks_;
  Scheduler scheduler_;
  Random luck_;
  TimeNs now_ = 0, device_free_ = 0;
  std::vector<std::unique_ptr<Simulated>> live_;  // [trace.requests]; null before and after
  std::vector<TimeNs> last_seen_ = std::vector<TimeNs>(trace_.requests.size());
  std::vector<size_t> slow_, masked_, told_, ends_;
  Agenda arrivals_, cancels_;
  Flight flights_[kStepsUnderWay];
  std::deque<Flight*> free_, under_way_;
  size_t next_ = 0, gone_ = 0, answered_ = 0, swept_ = 0, policies_ = 0;
  int in_engine_ = 0;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const SimulationSetup& setup, const Trace& trace, const SimulationHooks& hooks) {
  for (const TracedRequest& r : trace.requests)
    CHECK(r.input > 0 && r.input + r.output <= setup.layout.max_length, "a request of a trace fits");
  return Simulation(setup, trace, hooks).run();
}

}  // namespace sluice
