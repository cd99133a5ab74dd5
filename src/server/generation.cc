#include "server/generation.h"

#include "base/faults.h"
#include "base/log.h"
#include "base/meter.h"
#include "base/probes.h"
#include "engine/grammar_constraint.h"
#include "server/limits.h"
#include "server/sse.h"

namespace sluice {

namespace {

struct Meters {
  static Counter& ended(const char* reason) {
    return meter::counter("sluice_http_generations_total", "Generation requests over HTTP by how they ended.",
                          std::string("reason=\"") + reason + "\"");
  }
  Counter& started = meter::counter("sluice_http_generations_started_total",
                                    "Generation requests over HTTP that were handed to the engine.");
  Counter& gone(std::string_view why) {
    return why == "write_timeout"    ? write_timeout
           : why == "internal_error" ? failed
           : why == "server_stopped" ? shutdown
                                     : left;
  }
  Counter& completed = ended("completed");
  Counter& left = ended("client_disconnect");
  Counter& write_timeout = ended("write_timeout");
  Counter& failed = ended("failed");
  Counter& deadline = ended("deadline");
  Counter& shutdown = ended("shutdown");
  Counter& rejected = meter::counter("sluice_http_admission_rejections_total",
                                     "Generation requests that the engine did not take.");
};

Meters& meters() {
  static Meters m;
  return m;
}

constexpr int kTokensForPace = 5;

ApiError failure(FinishReason reason) {
  switch (reason) {
    case FinishReason::deadline:
      return {{ErrorCode::kDeadlineExceeded, "The request's deadline passed before the answer was complete."},
              ""};
    case FinishReason::cancelled:
      return {{ErrorCode::kUnavailable, "The server is shutting down."}, ""};
    default:
      return {{ErrorCode::kInternal, "The engine failed while generating."}, "engine_error"};
  }
}

// Of a choice that came to its own end; null: it did not.
const char* finish_name(FinishReason reason) {
  return reason == FinishReason::stop ? "stop" : reason == FinishReason::length ? "length" : nullptr;
}

bool is_failure(FinishReason reason) {
  return reason == FinishReason::deadline || reason == FinishReason::cancelled ||
         reason == FinishReason::failed;
}

}  // namespace

void register_generation_meters() { meters(); }

void AnswerFormat::close_stream(std::string& out, const Usage& all, bool wants_usage) {
  if (wants_usage) usage(out, all);
  out += kSseDone;
}

void AnswerFormat::stream_error(std::string& out, const ApiError& error, std::string_view) {
  append_sse(out, error_json(error));
}

Generation::Generation(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<ServedModel> model,
                       GenerationPlan plan, std::unique_ptr<AnswerFormat> format)
    : exchange_(std::move(exchange)),
      model_(std::move(model)),
      plan_(std::move(plan)),
      format_(std::move(format)) {}

void Generation::start(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<ServedModel> model,
                       GenerationPlan plan, std::unique_ptr<AnswerFormat> format) {
  if (exchange->gone()) return;
  std::shared_ptr<Generation> self(
      new Generation(std::move(exchange), std::move(model), std::move(plan), std::move(format)));
  self->exchange_->listen(self);
  self->submitted_ = now_ns();
  if (Status status = self->submit(); !status.ok()) {
    self->over_ = true;
    self->account_.drop();
    self->cancel_all();
    if (status.error().code == ErrorCode::kResourceExhausted) meters().rejected.add();
    if (self->plan_.fall_back) return self->hand_back();
    self->refuse(api_error(status.error()));
    self->plan_.permit.end();
    return;
  }
  meters().started.add();
  self->account_.begin();
  if (self->waits_in_vain()) self->pump();
}

RequestAccount Generation::account_head() const {
  RequestAccount head;
  head.request_id = plan_.request_id;
  head.answer_id = plan_.id;
  head.model = plan_.model;
  head.route = plan_.route;
  head.trace = plan_.trace;
  if (plan_.pooling == Pooling::none) {
    const SamplingParams& s = plan_.sampling;
    head.asked = {
        .max_tokens = plan_.options.max_tokens.value_or(-1),
        .temperature = s.temperature,
        .top_p = s.top_p,
        .biased = !s.logit_bias.empty(),
        .constrained = plan_.grammar != nullptr,
        .penalised = s.presence_penalty != 0 || s.frequency_penalty != 0 || s.repetition_penalty != 1};
  }
  head.lane = plan_.lane;
  head.tenant = plan_.tenant;
  for (const Prompt& prompt : plan_.prompts) head.prompt_tokens += int(prompt.ids.size());
  return head;
}

Request Generation::request_of(int prompt, int k) const {
  const auto& ids = plan_.prompts[size_t(prompt)].ids;
  const int room = model_->engine().info().context - int(ids.size());
  Request request;
  request.id = plan_.request_id;
  request.prompt = ids;
  request.sampling = plan_.sampling;
  request.sampling.seed = choice_seed(plan_.sampling.seed, k);
  int wanted = plan_.options.max_tokens.value_or(plan_.default_max_tokens);
  request.max_tokens = wanted < 0 || wanted > room ? room : wanted;
  request.min_tokens = std::min(plan_.options.min_tokens, request.max_tokens);
  request.ignore_eos = plan_.options.ignore_eos;
  request.pooling = plan_.pooling;
  request.stop_ids = plan_.options.stop_ids;
  request.deadline = plan_.deadline;
  request.lane = plan_.lane;
  request.tenant = plan_.tenant;
  request.cache_salt = plan_.options.cache_salt;
  if (plan_.grammar) request.constraint = constraint_of(plan_.grammar, model_->grammars().limits());
  return request;
}

// Lack of memory in the middle is told like that of the engine: what was submitted is cancelled.
Status Generation::submit() {
  try {
    return submit_all();
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kResourceExhausted, "there is no memory for another request; try again later"};
  }
}

Status Generation::submit_all() {
  const int n = plan_.options.n;
  const auto exchange = exchange_;
  const int most = model_->engine().info().max_requests, prompts = int(plan_.prompts.size());
  if (n * prompts > most) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} answers at once are more than this server takes, {}.", n * prompts, most),
                 n > 1 ? "n" : "prompt"};
  }
  account_.open(plan_.log, account_head(), plan_.arrival, model_->engine().step_ledger());
  running_.reserve(size_t(n * prompts));
  for (int p = 0; p < prompts; ++p) {
    for (int k = 0; k < n; ++k) {
      if (faults::armed() && faults::met_at(Fault::alloc_failure, {2})) [[unlikely]]
        throw std::bad_alloc();
      Running running;
      running.prompt = p;
      const int offset = plan_.echo ? code_points(plan_.prompts[size_t(p)].text) : 0;
      running.choice =
          std::make_unique<Choice>(p * n + k, model_->tokenizer(), plan_.options, plan_.keep_tokens, offset);
      const auto notify = [exchange] { exchange->wake(); };
      auto stream = plan_.batched ? model_->engine().enqueue(request_of(p, k), notify)
                                  : model_->engine().submit(request_of(p, k), notify);
      if (!stream.ok()) return stream.error();
      // From here to the next line nothing may fail: what the engine has is found by cancel_all.
      running.stream = std::move(stream).value();
      running_.push_back(std::move(running));
      const auto& handed = running_.back().stream;
      account_.add_choice({handed, &handed->progress()});
    }
  }
  return {};
}

// Takes what the engine has for all choices, then sends it in one go; again while the client takes it all.
void Generation::pump() {
  account_.unblock();
  bool more = true;
  while (more && !over_ && exchange_->unsent() <= limits::kStreamHighWater) {
    more = false;
    bool all_ended = true;
    const size_t unsent = exchange_->unsent();
    for (Running& running : running_) {
      if (plan_.options.stream && exchange_->unsent() - unsent > limits::kStreamHighWater) {
        more = true;
        all_ended = false;
        break;
      }
      const Pumped pumped = pump_choice(running);
      if (pumped == Pumped::failed) return;  // and said so
      more = more || pumped == Pumped::more;
      all_ended = all_ended && running.choice->ended();
    }
    if (all_ended) {
      finish_answer();
    } else if (const size_t made = exchange_->unsent() - unsent; made > 0) {
      about_to_send(made);
      exchange_->flush();
    }
  }
  if (!over_ && waits_in_vain()) return fail(failure(FinishReason::failed), "engine_hangs");
  if (!over_ && exchange_->unsent() > limits::kStreamHighWater) account_.block();
}

// There is somebody else who can answer.
bool Generation::waits_in_vain() const { return plan_.pool == Pool::canary && model_->engine().status().stuck; }

Generation::Pumped Generation::pump_choice(Running& running) {
  Choice& choice = *running.choice;
  TokenEvent event;
  bool any = false, more = false;
  while (!choice.ended() && running.stream->pop(event)) {
    any = true;
    account_.token(size_t(choice.index()), event,
                   event.id >= 0 ? text_seen(model_->tokenizer(), event.id) : TokenText());
    broken_ = broken_ || event.logits == LogitsState::nan || event.logits == LogitsState::flat;
    if (broken_ && plan_.pool == Pool::canary) {
      fail(failure(FinishReason::failed), "engine");
      return Pumped::failed;
    }
    if (first_token_ == 0) plan_.permit.first_token(first_token_ = event.time);
    if (event.finish != FinishReason::none) running.drained = true;
    if (!choice.push(event)) {
      more = !plan_.batched;
      if (more) break;
      continue;
    }
    account_.choice_ended(size_t(choice.index()), finish_name(choice.finish()));
    if (is_failure(choice.finish())) {
      fail(failure(choice.finish()), choice.finish() == FinishReason::deadline ? "deadline" : "engine");
      return Pumped::failed;
    }
    // A stop string ends it here; the engine learns of it like this.
    if (!running.drained) running.stream->cancel(FinishReason::stop);
  }
  const Pumped pumped = more ? Pumped::more : Pumped::dry;
  if (!any || !plan_.options.stream || running.reported) return pumped;
  const ChoiceView view{choice, plan_.prompts[size_t(running.prompt)], *running.stream, !running.opened};
  const ChoiceDelta& delta = choice.take();
  // The first event opens the choice even when its text is still held back: clients measure their wait by it.
  if (!delta.empty() || choice.ended() || !running.opened) {
    open_stream();
    format_->piece(exchange_->frames(), view, delta, choice.ended() ? timings(running) : Timings());
    running.opened = true;
  }
  running.reported = choice.ended();
  return pumped;
}

void Generation::open_stream() {
  if (stream_open_) return;
  stream_open_ = true;
  account_.opened(200);
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  add_pool(head);
  exchange_->begin(std::move(head));
}

void Generation::finish_answer() {
  over_ = true;
  tell_pool(false);
  release();
  meters().completed.add();
  log_end("completed");
  if (plan_.options.stream) {
    open_stream();
    format_->close_stream(exchange_->frames(), usage(), plan_.options.include_usage);
    about_to_send(exchange_->unsent());
    account_.answered("completed");
    exchange_->end(true);
    return;
  }
  account_.opened(200);
  HttpResponse response;
  format_->begin_whole(response.body);
  for (Running& running : running_) {
    const ChoiceView view{*running.choice, plan_.prompts[size_t(running.prompt)], *running.stream, true};
    format_->whole_choice(response.body, view, running.choice->take());
  }
  format_->end_whole(response.body, usage(), running_.size() == 1 ? timings(running_.front()) : Timings());
  account_.answered("completed");
  add_pool(response);
  about_to_send(response.body.size());
  exchange_->respond(std::move(response));
}

void Generation::fail(const ApiError& error, const char* reason) {
  over_ = true;
  // An answer that its grammar leads nowhere is its client's doing; so is a deadline. A canary's broken logits
  // are not, nor is its hanging; the stable pool is not given up for its own (nobody else could answer), so
  // that it is its grammar there.
  const bool its_form =
      plan_.grammar != nullptr && !(broken_ && plan_.pool == Pool::canary) && !waits_in_vain();
  const bool ours = error.error.code == ErrorCode::kInternal && !its_form;
  if (ours) tell_pool(true);
  if (ours && plan_.fall_back && !stream_open_) {
    meters().failed.add();
    log_end("handed_back");
    account_.answered("handed_back");
    account_.close(now_ns());
    cancel_all();
    return hand_back();
  }
  release();
  cancel_all();
  if (error.error.code == ErrorCode::kDeadlineExceeded)
    meters().deadline.add();
  else if (error.error.code == ErrorCode::kUnavailable)
    meters().shutdown.add();
  else
    meters().failed.add();
  log_end(reason);
  account_.answered(reason);
  if (!stream_open_) {
    respond_error(error);
    return;
  }
  // Behind what other choices said in this round.
  format_->stream_error(exchange_->frames(), error, plan_.request_id);
  exchange_->end(false);
}

// Nothing has been sent: its client hears nothing of it.
void Generation::hand_back() {
  plan_.passage.abandon();
  exchange_->listen(nullptr);
  std::exchange(plan_.fall_back, nullptr)(std::move(plan_.permit));
}

void Generation::add_pool(HttpResponse& response) const {
  if (plan_.pool == Pool::canary) response.headers.emplace_back("X-Sluice-Pool", pool_name(plan_.pool));
}

int Generation::respond_error(const ApiError& error) {
  HttpResponse response = error_response(error);
  const int status = response.status;
  account_.opened(status);
  if (status == 429 && plan_.permit) set_retry_after(response, plan_.permit.retry_after_s());
  style_error(response, format_->error_style(), plan_.request_id);
  exchange_->respond(std::move(response));
  return status;
}

void Generation::about_to_send(size_t bytes) const {
  if (probe::answer_write_on()) probe::fire::answer_write(plan_.request_id.c_str(), int64_t(bytes));
}

// The engine did not take it: no account, but a trace.
void Generation::refuse(const ApiError& error) {
  RequestAccount head = account_head();
  head.status = respond_error(error);
  if (plan_.log && head.trace) plan_.log->refuse(refused_at(std::move(head), plan_.arrival.first_byte));
}

void Generation::on_gone(const char* why) {
  account_.answered(why);
  account_.close(now_ns());
  if (over_) return;
  over_ = true;
  release();
  cancel_all();
  meters().gone(why).add();
  log_end(why);
}

void Generation::on_shutdown() {
  if (!over_) fail(failure(FinishReason::cancelled), "shutdown");
}

// As the client sees it: without a stream the first token comes with the last.
void Generation::tell_pool(bool failed) {
  const TimeNs now = now_ns();
  const int tokens = usage().completion_tokens;
  Outcome outcome;
  outcome.failed = failed;
  outcome.anomalous = broken_ || (tokens == 0 && plan_.options.max_tokens.value_or(1) > 0);
  outcome.first_token_ms = ms((plan_.options.stream && first_token_ != 0 ? first_token_ : now) - submitted_);
  if (plan_.options.stream && tokens >= kTokensForPace && now > first_token_)
    outcome.tokens_per_second = tokens / seconds(now - first_token_);
  plan_.passage.ended(outcome, now);
}

void Generation::release() {
  plan_.passage.abandon();
  plan_.permit.generated(usage().completion_tokens);
  plan_.permit.end();
}

void Generation::cancel_all() {
  for (Running& running : running_) {
    if (!running.drained) running.stream->cancel();
  }
}

Usage Generation::usage() const {
  Usage usage;
  for (const Prompt& prompt : plan_.prompts) usage.prompt_tokens += int(prompt.ids.size());
  for (size_t i = 0; i < running_.size(); ++i) {
    usage.completion_tokens += running_[i].choice->completion_tokens();
    usage.reasoning_tokens += running_[i].choice->reasoning_tokens();
    if (i % size_t(plan_.options.n) == 0)
      usage.cached_tokens += running_[i].stream->progress().cached_tokens.load(std::memory_order_relaxed);
  }
  return usage;
}

Timings Generation::timings(const Running& running) const {
  Timings t;
  if (!running.drained) return t;
  const RequestTimes& times = running.stream->times();
  t.known = true;
  t.queue_ms = ms(times.admitted - times.submitted);
  const TimeNs first = times.first_token > 0 ? times.first_token : times.finished;
  t.prompt_ms = ms(first - times.admitted);
  t.predicted_ms = ms(times.finished - first);
  t.cache_n = times.cached_tokens;
  t.prompt_n = int(plan_.prompts[size_t(running.prompt)].ids.size()) - times.cached_tokens;
  t.predicted_n = running.choice->completion_tokens();
  return t;
}

// One line per request: at debug where all went well, since a busy server answers thousands a second.
void Generation::log_end(const char* how) const {
  const bool well = std::string_view(how) == "completed";
  if (!log_enabled(well ? LogLevel::debug : LogLevel::info)) return;
  const Usage u = usage();
  const LogScope about(log_ids(plan_.trace, plan_.request_id));
  const std::string line =
      fmt::format("request {} {}: {} prompt tokens, {} generated, {:.1f} ms", plan_.request_id, how,
                  u.prompt_tokens, u.completion_tokens, ms(now_ns() - submitted_));
  log_line(well ? LogLevel::debug : LogLevel::info, line);
}

}  // namespace sluice
