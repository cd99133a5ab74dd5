// The loop's dealings with single requests: their streams and times. The loop itself is step_loop.cc.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/faults.h"
#include "base/log.h"
#include "base/probes.h"
#include "engine/step_loop.h"

namespace sluice {
namespace {

// A step that runs longer than this is no longer believed to end. Generous: a chunk of a large model on a slow
// CPU may take minutes.
constexpr TimeNs kStuckNs = 600'000'000'000;

// Masks of a large batch must be made within a step of a fast device; a small machine has no core to spare.
int mask_threads() { return std::clamp(int(std::thread::hardware_concurrency()) / 8, 1, 4); }

std::unique_ptr<DiskThread> disk_of(const StepLoopParts& parts, StepRunner& runner, Bell& bell) {
  if (parts.outside.host_slots == 0 || parts.outside.disk.path.empty()) return nullptr;
  return std::make_unique<DiskThread>(parts.outside.disk, runner.host_blocks(), parts.slot_bytes / kSlotUnits,
                                      bell);
}

std::unique_ptr<HostTier> host_of(const StepLoopParts& parts, DiskThread* disk) {
  if (parts.outside.host_slots == 0) return nullptr;
  constexpr size_t kMostFiles = 1 << 20;
  HostTierShape shape{.slots = parts.outside.host_slots, .slot_bytes = parts.slot_bytes};
  if (disk) {
    shape.disk_bytes = parts.outside.disk.bytes;
    const size_t smallest = parts.slot_bytes / kSlotUnits * size_t(parts.layout.tiering.smallest_units());
    shape.disk_blocks = int(std::min(shape.disk_bytes / smallest + 1, kMostFiles));
  }
  auto host = std::make_unique<HostTier>(shape, disk);
  if (!disk) return host;
  for (const BlockFileName& file : disk->found())
    if (file.group < parts.layout.groups()) host->add_file(file.key, file.group, file.tier);
  LOG(info, "kv.disk_path: {} blocks, {:.1f} MiB, are there from before", host->blocks_on_disk(),
      mib(host->disk_bytes()));
  return host;
}

}  // namespace

TokenLogprobs logprobs_of(const SampleResult& result) {
  TokenLogprobs out;
  out.logprob = result.logprob;
  out.rank = result.rank;
  out.count = std::min(result.top_count, kMaxTopLogprobs);
  std::copy_n(result.top_ids, out.count, out.ids);
  std::copy_n(result.top_logprobs, out.count, out.values);
  return out;
}

StepLoop::StepLoop(const StepLoopParts& parts, StepRunner& runner, EngineDoor& door, EngineMeters& meters)
    : door_(door),
      meters_(meters),
      vocab_(parts.vocab),
      layout_(parts.layout),
      slot_bytes_(parts.slot_bytes),
      inbox_(size_t(parts.policy.max_queue) + 1),
      disk_(disk_of(parts, runner, door.bell)),
      host_(host_of(parts, disk_.get())),
      scheduler_(parts.policy, parts.layout, parts.blocks, host_.get()),
      builder_({parts.policy.step_tokens, parts.policy.max_running, parts.replay, parts.outside.sparse},
               parts.layout, parts.cost),
      late_masks_(runner.takes_late_masks()),
      masks_(mask_threads(), 2 * (size_t(parts.policy.max_queue) + size_t(parts.policy.max_running)),
             door.bell),
      executor_(runner, door.bell) {
  for (Step& step : executor_.steps()) {
    step.plan.reserve(parts.policy.max_running, parts.policy.max_queue, parts.layout,
                      host_ ? most_host_moves(slot_bytes_) : 0);
    builder_.reserve(step, runner);
  }
  to_notify_.reserve(size_t(parts.policy.max_running) * 2 + size_t(parts.policy.max_queue));
  unready_.reserve(size_t(parts.policy.max_queue) + size_t(parts.policy.max_running));
  dropped_.reserve(size_t(parts.policy.max_running) * 2 + size_t(parts.policy.max_queue));
  publish_status();
}

StepLoop::~StepLoop() { CHECK(scheduler_.idle(), "the loop ended with requests in it"); }

void StepLoop::hand_over(std::unique_ptr<LiveRequest> request) {
  LiveRequest* live = request.release();
  CHECK(inbox_.push(std::move(live)), "the door counts what is queued");
}

bool StepLoop::replace_policy(Policy policy) {
  if (!policies_.push(std::move(policy))) return false;
  door_.bell.ring();
  return true;
}

// A sequence whose outbox might not take what is in flight, one token more and a last word waits for its
// client.
int StepLoop::pause_slow_clients() {
  int paused = 0;
  const auto look = [&](Sequence* s) {
    auto& live = static_cast<LiveRequest&>(*s);
    RequestStream& stream = *live.stream;
    const size_t wanted = size_t(live.samples_in_flight) + 2;
    const auto full = [&] { return stream.events_.capacity() - stream.events_.size() < wanted; };
    const bool was_paused = std::exchange(live.paused, full());
    if (!live.paused) {
      if (was_paused && live.steps_in_flight == 0) rest(live, now_ns());
      return;
    }
    // Announced first, then looked at again: the client pops first, then looks whether it was announced.
    stream.paused_.exchange(true);
    live.paused = full();
    live.was_paused |= live.paused;
    paused += live.paused;
    if (live.paused && live.steps_in_flight == 0) rest(live, now_ns());
  };
  for (Sequence* s : scheduler_.running())
    if (!s->ended()) look(s);
  for (Sequence* s : scheduler_.waiting()) {
    if (s->waits_as != WaitsAs::preempted)
      break;  // those that never ran come after all that did, and have sent nothing
    look(s);
  }
  return paused;
}

// The next mask of an answer, once a token of it is known. One that has ended needs it only if a step is under
// way that waits for it.
void StepLoop::ask_for_mask(LiveRequest& live, int32_t sampled) {
  if (live.answer && (!live.ended() || live.samples_in_flight > 0)) masks_.post(live.answer, sampled);
}

// An answer's first mask may take long, if its grammar is a difficult one; it holds up nobody but its own. One
// that nobody wants any more, or whose time is up, goes to the scheduler without a mask, to end there.
void StepLoop::queue_ready() {
  if (unready_.empty()) return;
  const TimeNs now = now_ns();
  size_t kept = 0;
  for (LiveRequest* live : unready_) {
    // Announced first, then looked at: the mask is made first, then it is looked whether somebody waits.
    live->answer->awaited.store(true);
    const TimeNs deadline = live->request.deadline;
    if (live->answer->made.load() == 0 && !is_unwanted(*live) && (!deadline || now < deadline))
      unready_[kept++] = live;
    else
      queue_up(*live);
  }
  unready_.resize(kept);
}

// Which answers cannot be planned for want of a mask: all on a device that takes no late ones; elsewhere those
// whose masks take long, since a step that waited for them would keep the others in it.
void StepLoop::look_at_masks() {
  if (masked_ == 0) return;
  const auto look = [&](Sequence* s) {
    auto& live = static_cast<LiveRequest&>(*s);
    if (!live.answer || live.ended()) return;
    AnswerMask& answer = *live.answer;
    const auto wanted = uint32_t(live.generated() + 1);
    const bool apart = !late_masks_ || answer.slow.load();
    live.needs_host_state = live.has_penalties || apart;
    const auto missing = [&] { return answer.made.load() < (apart ? wanted : 1); };
    live.awaits_mask = missing();
    if (!live.awaits_mask) return;
    // Announced first, then looked at again: the mask is made first, then it is looked whether somebody waits.
    answer.awaited.store(true);
    live.awaits_mask = missing();
  };
  for (Sequence* s : scheduler_.running()) look(s);
  for (Sequence* s : scheduler_.waiting()) look(s);
}

// `planned_by`: when the plan was made.
void StepLoop::note_admissions(const StepPlan& plan, TimeNs planned_by) {
  for (const PlanEntry& entry : plan.entries) {
    auto& live = static_cast<LiveRequest&>(*entry.sequence);
    SpanClock& spans = live.stream->progress_.spans;
    if (spans.current() == Span::preempted || live.preemptions != live.preemptions_seen) {
      note_preemption(live);
      spans.enter(Span::prefill_wait, planned_by);
    }
    if (!live.queued) continue;
    leave_queue(live);
    live.stream->times_.admitted = live.admitted_at;
    live.furthest_computed = live.cached_tokens;
    live.stream->progress_.cached_tokens.store(live.cached_tokens, std::memory_order_relaxed);
    spans.enter(Span::prefix_lookup, live.admitted_at);
    spans.enter(Span::prefill_wait, planned_by);
    meters_.lane_queue_seconds[size_t(live.lane())]->observe(
        seconds(live.admitted_at - live.stream->times_.submitted));
    meters_.queue_seconds.observe(seconds(live.admitted_at - live.stream->times_.submitted));
    if (probe::request_admit_on())
      probe::fire::request_admit(live.request.id.c_str(), live.probe_key(), live.cached_tokens,
                                 live.admitted_at - live.stream->times_.submitted);
  }
}

void StepLoop::leave_queue(LiveRequest& live) {
  if (!live.queued) return;
  live.queued = false;
  door_.queued.fetch_sub(1);
}

void StepLoop::keep_prompt_logprobs(LiveRequest& live, std::span<const SampleResult> results) {
  if (live.pools()) return;
  for (const SampleResult& result : results) live.stream->prompt_logprobs_.push_back(logprobs_of(result));
}

// Its sequences are being computed from now on: none runs before it.
void StepLoop::activate(const Step& step, TimeNs now) {
  for (const PlanEntry& entry : step.plan.entries) {
    auto& live = static_cast<LiveRequest&>(*entry.sequence);
    live.active_step = step.record.step;
    if (entry.first < live.furthest_computed)
      meters_.recomputed_tokens.add(uint64_t(std::min(entry.count, live.furthest_computed - entry.first)));
    live.stream->progress_.spans.enter(entry.first < live.furthest_computed ? Span::recompute
                                       : entry.first < live.prompt_tokens   ? Span::prefill
                                                                            : Span::decode,
                                       now);
  }
}

// The step that computed it is done; it sits out unless the one behind has it too.
void StepLoop::rest(LiveRequest& live, TimeNs now) {
  if (live.ended() || (behind_ && live.active_step == behind_->record.step)) return;
  if (live.state == SequenceState::waiting) return note_preemption(live);
  live.stream->progress_.spans.enter(live.paused                          ? Span::paused
                                     : live.computed < live.prompt_tokens ? Span::prefill_wait
                                                                          : Span::decode_wait,
                                     now);
}

// The scheduler preempts in the middle of a plan; the spans learn of it when the sequence is next looked at.
void StepLoop::note_preemption(LiveRequest& live) {
  if (live.preemptions == live.preemptions_seen) return;
  live.preemptions_seen = live.preemptions;
  live.stream->progress_.preemptions.store(live.preemptions, std::memory_order_relaxed);
  live.stream->progress_.spans.enter(Span::preempted, live.preempted_at);
  if (probe::preempt_on())
    probe::fire::preempt(live.request.id.c_str(), live.probe_key(), live.furthest_computed);
}

void StepLoop::account(LiveRequest& live, const PlanEntry& entry) {
  RequestProgress& progress = live.stream->progress_;
  progress.steps.store(progress.steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  live.furthest_computed = std::max(live.furthest_computed, entry.first + entry.count);
  live.computed_since_token += entry.count;
}

// Of the token that this entry samples; counting begins anew.
float StepLoop::kv_hit(LiveRequest& live, const PlanEntry& entry) {
  const int computed = std::exchange(live.computed_since_token, 0), context = entry.first + entry.count;
  return std::max(0.0f, 1 - float(computed) / float(context));
}

void StepLoop::deliver(LiveRequest& live, TokenEvent event) {
  RequestTimes& times = live.stream->times_;
  event.paused = std::exchange(live.was_paused, false);
  if (event.id >= 0) {
    if (probe::token_on())
      probe::fire::token(live.request.id.c_str(), live.probe_key(), event.step, event.id,
                         event.time - (times.first_token ? live.last_token : times.submitted));
    if (times.first_token == 0) {
      if (probe::first_token_on())
        probe::fire::first_token(live.request.id.c_str(), live.probe_key(), event.step,
                                 event.time - times.submitted);
      times.first_token = event.time;
      meters_.first_token_seconds.observe(seconds(event.time - times.submitted));
      meters_.prefill_seconds.observe(seconds(event.time - times.admitted));
      meters_.prompt_tokens.add(uint64_t(live.prompt_tokens));
    } else {
      meters_.inter_token_seconds.observe(seconds(event.time - live.last_token));
    }
    live.last_token = event.time;
    meters_.generated_tokens.add();
  }
  if (event.finish != FinishReason::none) finish_times(live, event.time);
  RequestStream& stream = *live.stream;
  CHECK(stream.events_.push(event), "a full outbox pauses its sequence");
  if (!stream.notified_.exchange(true) && stream.notify_) to_notify_.push_back(live.stream);
}

// The last of what is written about a request: its client may read the times once it has the last event.
void StepLoop::finish_times(LiveRequest& live, TimeNs now) {
  RequestTimes& times = live.stream->times_;
  RequestProgress& progress = live.stream->progress_;
  note_preemption(live);
  progress.spans.stop(now);
  times.finished = now;
  times.steps = progress.steps.load(std::memory_order_relaxed);
  times.preemptions = live.preemptions;
  times.cached_tokens = live.cached_tokens;
  times.host_tokens = live.host_tokens;
  times.disk_tokens = live.disk_tokens;
  if (times.first_token == 0 && live.finish == FinishReason::length)
    meters_.prompt_tokens.add(uint64_t(live.prompt_tokens));
  if (times.first_token) meters_.decode_seconds.observe(seconds(now - times.first_token));
  if (times.admitted) meters_.inference_seconds.observe(seconds(now - times.admitted));
  meters_.request_seconds.observe(seconds(now - times.submitted));
  meters_.request_prompt_tokens.observe(live.prompt_tokens);
  meters_.request_generated_tokens.observe(live.generated());
  meters_.finished[size_t(live.finish)]->add();
  if (probe::request_end_on())
    probe::fire::request_end(live.request.id.c_str(), live.probe_key(), finish_reason_name(live.finish),
                             live.generated(), now - times.submitted);
}

// Cancelled or out of time: its client gets a last event without a token.
void StepLoop::end_without_token(LiveRequest& live, FinishReason reason, TimeNs now) {
  if (!live.ended()) scheduler_.end(&live, reason);
  leave_queue(live);
  TokenEvent event;
  event.finish = reason;
  event.time = now;
  deliver(live, event);
  if (live.gone()) forget(live);
}

// Those that ended while nothing but blocks of theirs was in flight.
void StepLoop::forget_restored(const StepPlan& plan) {
  for (size_t i = 0; i < plan.host_moves.size(); ++i) {
    auto* live = static_cast<LiveRequest*>(plan.host_moves[i].to);
    if (i + 1 < plan.host_moves.size() && plan.host_moves[i + 1].to == live) continue;
    if (live && live->gone()) forget(*live);
  }
}

void StepLoop::hear_of_files() {
  if (!disk_) return;
  for (DiskThread::Finished done; disk_->finished(done);) {
    if (done.job.kind == DiskJob::Kind::read && done.outcome == DiskOutcome::done)
      scheduler_.transfer_rates().note_disk(done.bytes, done.took);
    host_->finish(done.job, done.outcome);
  }
}

void StepLoop::forget(LiveRequest& live) {
  CHECK(live.gone() && !live.queued);
  const Lane lane = live.request.lane;
  masked_ -= live.answer != nullptr;
  delete &live;
  ++gone_[size_t(lane)];
}

// After a turn's events are all in their outboxes: a client woken now finds everything. Only then do requests
// count as gone, so nobody is notified once a drain has returned.
void StepLoop::notify_clients() {
  for (const auto& stream : to_notify_) stream->notify_();
  to_notify_.clear();
  for (int lane = 0; lane < kLanes; ++lane)
    for (int& gone = gone_[size_t(lane)]; gone > 0; --gone) door_.leave(Lane(lane));
}

// What happened with a plan that may explain how long its step takes.
void StepLoop::note_plan(const StepPlan& plan, StepRecord& r) {
  const uint64_t evicted = scheduler_.blocks().evicted();
  r.evicted = int32_t(evicted - std::exchange(evictions_noted_, evicted));
  r.moved = int32_t(plan.moves.size());
  for (const PlanEntry& e : plan.entries) {
    if (e.count <= r.longest_prompt || e.first >= e.sequence->prompt_tokens) continue;
    r.longest_prompt = e.count;
    r.longest_prompt_tenant = e.sequence->request.tenant;
  }
}

// What tests plant on the engine's thread.
void StepLoop::meet_faults() {
  if (const auto burn = faults::met(Fault::cpu_stall, next_step_)) faults::burn_ms(*burn);
  if (const auto off = faults::met(Fault::off_cpu, next_step_))
    std::this_thread::sleep_for(std::chrono::milliseconds(*off));
  if (const auto count = faults::met(Fault::engine_alloc, next_step_))
    for (int64_t i = 0; i < *count; ++i) {
      void* volatile block = ::operator new(16);  // volatile: else the pair is left out
      ::operator delete(block);
    }
  if (const auto most = faults::met(Fault::evict_cache, next_step_)) scheduler_.give_up_cached(int(*most));
  if (const auto jump = faults::met(Fault::clock_jump, next_step_)) clock_offset_ns += *jump * 1'000'000;
  if (faults::met_at(Fault::engine_exception, {0}, next_step_))
    throw std::runtime_error("planted on the engine's thread (SLUICE_FAULTS)");
}

EngineStatus StepLoop::status() const {
  EngineStatus status;
  status.running = running_.load(std::memory_order_relaxed);
  status.waiting = waiting_.load(std::memory_order_relaxed);
  status.blocks_used = blocks_used_.load(std::memory_order_relaxed);
  status.blocks_cached = blocks_cached_.load(std::memory_order_relaxed);
  status.blocks_total = scheduler_.blocks().total();
  status.steps = steps_.load(std::memory_order_relaxed);
  status.last_step = last_step_.load(std::memory_order_relaxed);
  status.draining = door_.draining.load();
  const TimeNs since = executor_.running_since(), turn = turn_since_.load(std::memory_order_relaxed);
  status.busy_since = since != 0 && (turn == 0 || since < turn) ? since : turn;
  status.stuck = since != 0 && now_ns() - since > kStuckNs;
  return status;
}

}  // namespace sluice
