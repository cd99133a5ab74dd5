#include "engine/step_loop.h"

#include <pthread.h>

#include <algorithm>

#include "base/allocation_budget.h"
#include "base/faults.h"
#include "base/probes.h"

namespace sluice {
namespace {

LogitsState logits_of(const Step& step, size_t entry) {
  return step.plan.entries[entry].samples ? step.states[size_t(step.row_begin[entry + 1] - 1)]
                                          : LogitsState::fine;
}

}  // namespace

// The loop. Each turn takes in what has arrived, takes back a finished step, and launches the next one while
// another still runs.
void StepLoop::run() {
  for (;;) {
    const uint32_t heard = door_.bell.count();  // read first: nothing that comes after it is slept through
    turn_since_.store(now_ns(), std::memory_order_relaxed);
    take_up_policies();
    drain_inbox();
    drop_cancelled();
    hear_of_files();
    const bool committed = commit_finished();
    const bool launched = launch_next();
    publish_status();
    notify_clients();
    if (committed || launched) continue;
    if (door_.quit.load() && scheduler_.idle() && unready_.empty() && executor_.in_flight() == 0) return;
    turn_since_.store(0, std::memory_order_relaxed);
    door_.bell.wait(heard, executor_.free_step() ? wake_at() : 0);
  }
}

// When there is something to plan though nothing rings: a deadline, or a batch that has gathered long enough.
TimeNs StepLoop::wake_at() const {
  TimeNs at = 0;
  const auto sooner = [&](TimeNs t) {
    if (t && (!at || t < at)) at = t;
  };
  sooner(scheduler_.next_deadline());
  sooner(scheduler_.next_flush());
  sooner(scheduler_.next_restore_end());
  for (const LiveRequest* live : unready_) sooner(live->request.deadline);
  return at;
}

bool StepLoop::is_unwanted(const LiveRequest& live) const {
  return door_.cancel_all.load() || live.stream->unwanted_.load() != FinishReason::none;
}
FinishReason StepLoop::why_unwanted(const LiveRequest& live) const {
  const FinishReason why = live.stream->unwanted_.load();
  return why == FinishReason::none ? FinishReason::cancelled : why;
}

void StepLoop::take_up_policies() {
  Policy policy;
  while (policies_.pop(policy)) scheduler_.set_policy(policy);
}

void StepLoop::drain_inbox() {
  LiveRequest* live = nullptr;
  while (inbox_.pop(live)) {
    live->arrived_at = live->stream->times_.submitted;
    if (live->answer) {
      ++masked_;
      ask_for_mask(*live, -1);
      unready_.push_back(live);
    } else {
      queue_up(*live);
    }
  }
  queue_ready();
}

void StepLoop::queue_up(LiveRequest& live) {
  CHECK(scheduler_.add(&live), "the door counts what is queued");
  if (is_unwanted(live)) end_without_token(live, why_unwanted(live), now_ns());
}

void StepLoop::drop_cancelled() {
  const uint64_t cancels = door_.cancels.load();
  if (cancels == cancels_seen_) return;
  cancels_seen_ = cancels;
  dropped_.clear();
  const auto look = [&](Sequence* s) {
    auto* live = static_cast<LiveRequest*>(s);
    if (!live->ended() && is_unwanted(*live)) dropped_.push_back(live);
  };
  for (Sequence* s : scheduler_.running()) look(s);
  for (Sequence* s : scheduler_.waiting()) look(s);
  const TimeNs now = now_ns();
  for (LiveRequest* live : dropped_) end_without_token(*live, why_unwanted(*live), now);
}

// Plans a step and hands it to the executor, if that has room for one.
bool StepLoop::launch_next() {
  Step* step = executor_.free_step();
  if (!step) return false;
  StepRecord& r = step->record = {};
  step->failed = false;
  const TimeNs cpu = thread_cpu_ns();
  const uint64_t allocations = thread_allocations();
  r.paused = pause_slow_clients();
  look_at_masks();
  r.planned_at = now_ns();
  if (faults::armed()) [[unlikely]]
    meet_faults();
  scheduler_.plan(r.planned_at, step->plan);
  const TimeNs built_from = now_ns();
  meter_prefixes(step->plan);
  for (Sequence* s : step->plan.expired) {
    auto& live = static_cast<LiveRequest&>(*s);
    end_without_token(live, FinishReason::deadline, built_from);
  }
  if (step->plan.empty()) {
    if (executor_.in_flight() == 0) work_since_ = 0;
    return !step->plan.expired.empty();
  }
  if (work_since_ == 0) work_since_ = r.planned_at;
  note_admissions(step->plan, built_from);
  builder_.build(*step, scheduler_.blocks());
  r.step = next_step_++;
  r.plan_ns = built_from - r.planned_at;
  r.build_ns = now_ns() - built_from;
  r.engine_off_cpu_ns = r.plan_ns + r.build_ns - (thread_cpu_ns() - cpu);
  r.allocations = int64_t(thread_allocations() - allocations);
  note_plan(step->plan, r);
  if (executor_.in_flight() == 0)
    activate(*step, r.planned_at + r.plan_ns + r.build_ns);
  else
    behind_ = step;
  if (probe::step_begin_on()) probe::fire::step_begin(r.step, r.tokens, r.sequences);
  executor_.launch(step);
  return true;
}

// Takes back the oldest step if it is done: ids, ends, blocks, events.
bool StepLoop::commit_finished() {
  Step* step = executor_.finished();
  if (!step) return false;
  const TimeNs now = now_ns(), cpu = thread_cpu_ns();
  const uint64_t allocations = thread_allocations();
  step->record.ended_unix_ns = unix_ns();
  if (behind_) activate(*behind_, now);
  // A step that also copied blocks tells nothing of what its rows take.
  if (step->plan.host_moves.empty()) scheduler_.note_step(step->plan, step->record.execute_ns);
  scheduler_.land_moves(step->plan, now);
  forget_restored(step->plan);
  for (size_t i = 0; i < step->plan.entries.size(); ++i) commit(*step, i, now);
  behind_ = nullptr;
  step->record.allocations += int64_t(thread_allocations() - allocations);
  record(*step, now, cpu);
  executor_.recycle(step);
  return true;
}

void StepLoop::commit(Step& step, size_t index, TimeNs now) {
  const PlanEntry& entry = step.plan.entries[index];
  auto& live = static_cast<LiveRequest&>(*entry.sequence);
  const LogitsState logits = logits_of(step, index);
  live.spoiled |= step.failed || logits == LogitsState::nan;
  if (step.failed && !live.ended()) end_without_token(live, FinishReason::failed, now);
  if (live.ended()) {  // cancelled, or past its end: what the step made of it is thrown away
    step.record.discarded += entry.samples;
    scheduler_.land(entry, -1, FinishReason::none, now);
    if (entry.samples) ask_for_mask(live, step.results_of(index).back().id);
    if (live.gone()) forget(live);
    return;
  }
  if (live.answer && entry.samples && live.answer->sampled_in_vain()) {
    step.record.discarded += 1;
    const int32_t ignored = step.results_of(index).back().id;
    scheduler_.land(entry, ignored, FinishReason::none, now);
    // Read first: an answer that is over cannot be followed by the ignored token, which is no failure of it.
    const FinishReason why = live.answer->failed.load() ? FinishReason::failed : FinishReason::stop;
    ask_for_mask(live, ignored);  // a step behind this one may wait for it
    return end_without_token(live, why, now);
  }
  account(live, entry);
  const auto results = step.results_of(index);
  keep_prompt_logprobs(live, entry.samples ? results.first(results.size() - 1) : results);
  const int32_t id = entry.samples ? results.back().id : -1;
  const bool prompt_only = live.request.max_tokens == 0 && entry.first + entry.count == live.prompt_tokens;
  const FinishReason reason = prompt_only ? FinishReason::length : end_reason(live, id);
  const int preemptions = live.preemptions;  // landing may be one, which is the next token's
  scheduler_.land(entry, id, reason, now);
  if (id >= 0) ask_for_mask(live, id);

  if (entry.samples || prompt_only) {
    TokenEvent event;
    event.id = id;
    event.finish = reason;
    event.stop_id = reason == FinishReason::stop ? id : -1;
    event.step = int32_t(step.record.step);
    event.time = now;
    event.kv_hit = kv_hit(live, entry);
    event.logits = logits;
    event.preempted = std::exchange(live.preemptions_told, preemptions) != preemptions;
    if (entry.samples) {
      const SampleResult& result = results.back();
      CHECK(id >= 0 && id < vocab_, "a sampled id out of range");
      event.peak = result.peak;
      if (live.request.sampling.top_logprobs >= 0) event.logprobs = logprobs_of(result);
    }
    deliver(live, event);
  }
  step.record.sampled += entry.samples;
  step.record.ended += reason != FinishReason::none;
  rest(live, now);
  if (live.gone()) forget(live);
}

FinishReason StepLoop::end_reason(const LiveRequest& live, int32_t id) const {
  if (id < 0) return FinishReason::none;
  const int generated = live.generated() + 1;
  if ((live.answer || generated > live.request.min_tokens) && live.ends_with(id)) return FinishReason::stop;
  return generated >= live.request.max_tokens ? FinishReason::length : FinishReason::none;
}

}  // namespace sluice
