#include "server/answer_account.h"

#include <algorithm>
#include <chrono>

namespace sluice {
namespace {

// Unix seconds of a moment of the monotonic clock.
double unix_seconds(TimeNs at) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - seconds(now_ns() - at);
}

}  // namespace

RequestAccount refused_at(RequestAccount head, TimeNs first_byte, TimeNs now) {
  head.began = first_byte;
  head.finished = head.opened = now;
  head.started_at = unix_seconds(first_byte);
  head.ended = "refused";
  return head;
}

AnswerAccount::~AnswerAccount() {
  if (!running_) return;
  answered("shutdown");
  close(now_ns());
}

void AnswerAccount::open(std::shared_ptr<RequestLog> log, RequestAccount head, const ArrivalTimes& arrival) {
  log_ = std::move(log);
  head_ = std::move(head);
  arrival_ = arrival;
  head_.began = arrival.first_byte;
  head_.started_at = unix_seconds(arrival.first_byte);
}

void AnswerAccount::add_choice(std::shared_ptr<const RequestProgress> progress) {
  choices_.push_back({std::move(progress), {}});
  tokens_.emplace_back();
}

void AnswerAccount::begin() {
  if (!log_) return;
  auto running = std::make_shared<RunningRequest>();
  running->head = head_;
  for (const Choice& choice : choices_) {
    running->head.choices.push_back({.spans = before(reading_of(choice, 0))});
    running->choices.push_back(choice.progress);
  }
  running_ = running;
  log_->begin(running);
}

void AnswerAccount::drop() { log_ = nullptr; }

// What was spent until its submission.
SpanTimes AnswerAccount::before(const SpanClock::Reading& reading) const {
  SpanTimes spans;
  spans[Span::read] = arrival_.last_byte - arrival_.first_byte;
  spans[Span::parse] = arrival_.parsed ? arrival_.parsed - arrival_.prepared_from : 0;
  spans[Span::tokenize] = reading.began - arrival_.last_byte - spans[Span::parse];
  return spans;
}

SpanClock::Reading AnswerAccount::reading_of(const Choice& choice, TimeNs now) const {
  return choice.ended ? choice.reading : choice.progress->spans.read(now);
}

void AnswerAccount::token(size_t index, const TokenEvent& event) {
  if (!log_ || event.id < 0) return;
  Choice& choice = choices_[index];
  const TimeNs before = std::exchange(choice.last_token, event.time);
  if (before)
    choice.longest_gap = std::max(choice.longest_gap, event.time - before);
  else
    choice.first_token = event.time;
  ++choice.generated;
  if (tokens_kept_ == RequestLog::kTokensOfRequest) return;
  ++tokens_kept_;
  const TimeNs latency = event.time - (before ? before : arrival_.first_byte);
  tokens_[index].push_back({event.id, event.step, float(ms(latency)), event.kv_hit});
}

void AnswerAccount::choice_ended(size_t index, const char* finish_reason, TimeNs now) {
  Choice& choice = choices_[index];
  choice.reading = choice.progress->spans.read(now);
  choice.ended = true;
  choice.finish_reason = finish_reason;
}

void AnswerAccount::opened(int status, TimeNs now) {
  if (head_.opened) return;
  head_.opened = now;
  head_.status = status;
}

void AnswerAccount::block(TimeNs now) {
  if (running_ && !running_->blocked.since.load()) running_->blocked.since.store(now);
}

void AnswerAccount::unblock(TimeNs now) {
  if (!running_) return;
  TimeNs since = running_->blocked.since.exchange(0);
  if (!since) return;
  for (const Choice& choice : choices_) {
    const SpanClock::Reading reading = reading_of(choice, now);
    if (!choice.ended && !reading.ended) return;  // the engine went on meanwhile
    since = std::max(since, reading.until());
  }
  running_->blocked.before.fetch_add(std::max<TimeNs>(0, now - since));
}

void AnswerAccount::answered(const char* how, TimeNs now) {
  unblock(now);
  if (!answered_at_) answered_at_ = now;
  head_.ended = how;
}

// Differences of one row of moments, each no earlier than the one before, so that they add up to the whole.
void AnswerAccount::close(TimeNs now) {
  if (!running_) return;
  const auto running = std::exchange(running_, nullptr);
  std::vector<SpanClock::Reading> readings;
  TimeNs engine_end = 0;
  for (const Choice& choice : choices_) {
    readings.push_back(reading_of(choice, answered_at_));
    if (readings.back().until() <= engine_end) continue;
    engine_end = readings.back().until();
    head_.last = readings.size() - 1;
  }
  const TimeNs made = std::max(answered_at_, engine_end);
  head_.finished = std::max(now, made);
  const TimeNs blocked = std::min(running->blocked.before.load(), made - engine_end);
  for (size_t k = 0; k < choices_.size(); ++k) {
    const Choice& choice = choices_[k];
    const RequestProgress& progress = *choice.progress;
    ChoiceAccount account;
    account.spans = before(readings[k]);
    for (size_t i = 0; i < size_t(kSpans); ++i) account.spans.ns[i] += readings[k].spans.ns[i];
    account.spans[Span::other_choices] = engine_end - readings[k].until();
    account.spans[Span::format] = made - engine_end - blocked;
    account.spans[Span::write] = head_.finished - made + blocked;
    account.submitted = readings[k].began;
    account.first_token = choice.first_token;
    account.longest_gap = choice.longest_gap;
    account.engine_end = readings[k].until();
    account.generated = choice.generated;
    account.cached_tokens = progress.cached_tokens.load(std::memory_order_relaxed);
    account.preemptions = progress.preemptions.load(std::memory_order_relaxed);
    account.steps = progress.steps.load(std::memory_order_relaxed);
    account.finish_reason = choice.finish_reason ? choice.finish_reason : head_.ended;
    head_.choices.push_back(account);
  }
  std::exchange(log_, nullptr)->finish(running.get(), std::move(head_), std::move(tokens_));
}

}  // namespace sluice
