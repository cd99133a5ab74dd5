#include "server/answer_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/log.h"
#include "base/log_scope.h"

namespace sluice {
namespace {

constexpr int kUsualTokens = 256;  // of a choice, that the account has room for at once

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

void AnswerAccount::open(std::shared_ptr<RequestLog> log, RequestAccount head, const ArrivalTimes& arrival,
                         const StepLedger* ledger) {
  log_ = std::move(log);
  ledger_ = ledger;
  head_ = std::move(head);
  arrival_ = arrival;
  head_.began = arrival.first_byte;
  head_.started_at = unix_seconds(arrival.first_byte);
}

void AnswerAccount::add_choice(std::shared_ptr<const RequestProgress> progress) {
  choices_.emplace_back().progress = std::move(progress);
  const int wanted = head_.asked.max_tokens;
  tokens_.emplace_back().reserve(size_t(wanted < 0 ? kUsualTokens : std::min(wanted, kUsualTokens)));
}

void AnswerAccount::begin() {
  if (!log_) return;
  auto running = std::make_shared<RunningRequest>();
  running->head = head_;
  for (const Choice& choice : choices_) {
    running->head.choices.emplace_back().spans = before(reading_of(choice, 0));
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

void AnswerAccount::token(size_t index, const TokenEvent& event, const TokenText& text) {
  if (!log_) return;
  Choice& choice = choices_[index];
  watch(choice, event, text);
  if (event.id < 0) return;
  choice.last_step = event.step;
  const TimeNs before = std::exchange(choice.last_token, event.time);
  if (before)
    choice.longest_gap = std::max(choice.longest_gap, event.time - before);
  else
    choice.first_token = event.time;
  ++choice.generated;
  if (tokens_kept_ == RequestLog::kTokensOfRequest) return;
  ++tokens_kept_;
  const TimeNs latency = event.time - (before ? before : arrival_.first_byte);
  tokens_[index].push_back({event.id, event.step, float(ms(latency)), event.kv_hit, float(choice.watch.z())});
}

// Before the choice takes note of the event.
void AnswerAccount::watch(Choice& choice, const TokenEvent& event, const TokenText& text) {
  OddFacts facts;
  facts.from = choice.last_token, facts.to = event.time;
  facts.step_before = choice.last_step;
  facts.step = event.id >= 0 ? event.step : choice.last_step + 1;  // an end without a token knows no step
  facts.tenant = head_.tenant;
  facts.preempted = event.preempted, facts.paused = event.paused;
  facts.sampler = {std::max(0.0f, head_.asked.temperature), head_.asked.biased, head_.asked.constrained,
                   head_.asked.penalised};
  const auto note = [&](const OddToken& odd) {
    facts.kind = odd.kind, facts.value = odd.value, facts.usual = odd.usual;
    choice.odd.emplace_back(facts, choice.watch.tokens());
  };
  if (event.id < 0) {
    if (event.finish == FinishReason::failed) note({AnomalyKind::failed_step, 1, 0});
    return;
  }
  TokenSeen seen{.id = event.id,
                 .kv_hit = event.kv_hit,
                 .logits = event.logits,
                 .peak = event.peak,
                 .chars = text.chars,
                 .control = text.control};
  if (choice.last_token) seen.interval_ms = ms(event.time - choice.last_token);
  choice.broken |= event.logits == LogitsState::nan || event.logits == LogitsState::flat;
  const auto odd = choice.watch.push(seen, log_->anomalies().usual(head_.lane));
  facts.unlikely = choice.watch.saw_unlikely(), facts.broken = choice.broken;
  for (const OddToken& each : odd) note(each);
  // Many wait only where steps have no numbers (--dummy null): without a bound each token would look at them
  // all.
  if (!choice.odd.empty()) settle(choice, choice.odd.size() < kMostUnsettled ? event.step - 2 : event.step);
}

// What was odd in steps up to this one, whose records and that of the step behind it are there.
void AnswerAccount::settle(Choice& choice, int64_t until_step) {
  std::erase_if(choice.odd, [&](const auto& odd) {
    if (odd.first.step > until_step) return false;
    Anomaly anomaly;
    if (!log_->anomalies().make(odd.first, odd.second, ledger_, anomaly)) return true;
    tell(anomaly);
    if (choice.anomalies.size() < size_t(ChoiceAccount::kMostAnomalies))
      choice.anomalies.push_back(std::move(anomaly));
    else
      ++choice.anomalies_cut;
    return true;
  });
}

void AnswerAccount::tell(const Anomaly& a) const {
  // Numbers that are none are a fault whatever the text; the other kinds are only odd.
  const bool fault = a.kind == AnomalyKind::nan_logits || a.kind == AnomalyKind::failed_step;
  const LogLevel level = fault ? LogLevel::warn : LogLevel::info;
  if (!log_enabled(level) || !log_->anomalies().may_log(a.at)) return;
  const LogScope about(log_ids(head_.trace, head_.request_id));
  log_line(level, fmt::format("request {} token {} in step {}: {} ({:.4g}, usually {:.4g}), for {}: {}",
                              head_.request_id, a.token, a.step, anomaly_name(a.kind), a.value, a.usual,
                              cause_name(a.cause()), a.chain[0].text));
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
    Choice& choice = choices_[k];
    settle(choice, std::numeric_limits<int64_t>::max());
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
    account.anomalies = std::move(choice.anomalies);
    account.anomalies_cut = choice.anomalies_cut;
    account.finish_reason = choice.finish_reason ? choice.finish_reason : head_.ended;
    head_.choices.push_back(account);
  }
  std::exchange(log_, nullptr)->finish(running.get(), std::move(head_), std::move(tokens_));
}

}  // namespace sluice
