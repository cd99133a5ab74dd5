#include "server/proxied_answer.h"

#include <charconv>

#include "base/log.h"
#include "server/http_error.h"
#include "server/limits.h"
#include "server/sse.h"

namespace sluice {

namespace {

constexpr int kEventsForPace = 5;

int count_events(std::string_view bytes) {
  int count = 0;
  for (size_t at = 0; (at = bytes.find("data: ", at)) != std::string_view::npos; ++at) ++count;
  return count;
}

std::string cut_event(const char* why) {
  std::string out;
  append_sse(out, error_json(503, why));
  return out;
}

TimeNs deadline_of(const HttpRequest& request) {
  int asked_ms = 0;
  const auto text = request.header("x-request-timeout-ms");
  std::from_chars(text.data(), text.data() + text.size(), asked_ms);
  return asked_ms > 0 ? request.began + TimeNs(asked_ms) * 1'000'000 : 0;
}

// What the other server says of the request, and not of its connection.
bool goes_along(std::string_view name) {
  const auto begins = [&](std::string_view with) {
    return name.size() >= with.size() && equal_ignoring_case(name.substr(0, with.size()), with);
  };
  return begins("retry-after") || begins("x-sluice-");
}

}  // namespace

void ProxiedAnswer::start(Start start, Upstream& upstream, int timeout_ms) {
  std::shared_ptr<ProxiedAnswer> self(new ProxiedAnswer(std::move(start)));
  self->deadline_ = deadline_of(self->start_.request);
  self->began_ = now_ns();
  self->start_.exchange->listen(self);
  self->call_ = upstream.start(self->start_.request, timeout_ms, self);
}

void ProxiedAnswer::on_head(UpstreamHead head) {
  start_.exchange->post([self = shared_from_this(), head = std::move(head)] { self->take_head(head); });
}
void ProxiedAnswer::on_body(std::string bytes) {
  start_.exchange->post([self = shared_from_this(), bytes = std::move(bytes)] { self->take_body(bytes); });
}
void ProxiedAnswer::on_end(std::string error) {
  start_.exchange->post([self = shared_from_this(), error = std::move(error)] { self->take_end(error); });
}

void ProxiedAnswer::take_head(UpstreamHead head) {
  if (call_ == nullptr) return;
  head_ = std::move(head);
  streams_ = head_.status == 200 && !head_.sized;
  call_->resume();
}

void ProxiedAnswer::take_body(const std::string& bytes) {
  if (call_ == nullptr) return;
  last_byte_ = now_ns();
  if (first_byte_ == 0) {
    first_byte_ = last_byte_;
    start_.permit.first_token(last_byte_);
    if (streams_) open_stream();
  }
  events_ += count_events(bytes);
  waits_ = true;
  if (!streams_) {
    whole_ += bytes;
    if (whole_.size() > limits::kBodyBytesInFlight) return take_end("its answer is too long");
  } else {
    start_.exchange->write(bytes);
    start_.exchange->flush();
    if (start_.exchange->unsent() > limits::kStreamHighWater) return;
  }
  resume();
}

void ProxiedAnswer::open_stream() {
  HttpResponse head;
  head.content_type = head_.content_type;
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  add_told(head);
  start_.exchange->begin(std::move(head));
}

void ProxiedAnswer::add_told(HttpResponse& response) const {
  response.headers.emplace_back("X-Sluice-Pool", pool_name(Pool::canary));
  for (const auto& [name, value] : head_.headers)
    if (goes_along(name)) response.headers.emplace_back(name, value);
}

void ProxiedAnswer::take_end(const std::string& error) {
  if (call_ == nullptr) return;
  const bool failed = !error.empty() || head_.status >= 500;
  const bool late = failed && deadline_ != 0 && now_ns() >= deadline_;
  const bool answered = !failed && head_.status / 100 == 2;
  if (!answered) {
    const std::string why = error.empty() ? fmt::format("status {}", head_.status) : error;
    log_line(failed && !late ? LogLevel::warn : LogLevel::info, "canary: " + why);
  }
  if (answered || (failed && !late)) report(failed);
  if (!answered && !(streams_ && first_byte_ != 0)) {
    cancel();
    start_.exchange->listen(nullptr);
    return start_.fall_back(std::move(start_.request), std::move(start_.permit));
  }
  stop();
  if (streams_ && first_byte_ != 0) {
    if (failed && !late) start_.exchange->write(cut_event("The server that answered is gone."));
    return start_.exchange->end(!failed);
  }
  HttpResponse response;
  response.status = head_.status;
  response.content_type = head_.content_type;
  response.body = std::move(whole_);
  add_told(response);
  start_.exchange->respond(std::move(response));
}

void ProxiedAnswer::report(bool failed) {
  const TimeNs now = now_ns();
  Outcome outcome;
  outcome.failed = failed;
  outcome.anomalous = head_.status == 200 && (streams_ ? events_ < 2 : whole_.empty());
  outcome.first_token_ms = first_byte_ != 0 ? ms(first_byte_ - began_) : ms(now - began_);
  if (streams_ && events_ >= kEventsForPace && last_byte_ > first_byte_)
    outcome.tokens_per_second = events_ / seconds(last_byte_ - first_byte_);
  start_.passage.ended(outcome, now);
}

void ProxiedAnswer::resume() {
  if (call_ == nullptr || !waits_) return;
  waits_ = false;
  call_->resume();
}

// What the passage has not told by now it never tells.
void ProxiedAnswer::cancel() {
  if (auto call = std::move(call_)) call->cancel();
  start_.passage.abandon();
}

// The rest of what the permit was charged goes back.
void ProxiedAnswer::stop() {
  cancel();
  start_.permit.generated(streams_ ? events_ : int(whole_.size() / kBytesPerToken));
  start_.permit.end();
}

void ProxiedAnswer::on_gone(const char*) { stop(); }

void ProxiedAnswer::on_shutdown() {
  if (call_ == nullptr) return;
  stop();
  if (streams_ && first_byte_ != 0) {
    start_.exchange->write(cut_event("The server is shutting down."));
    return start_.exchange->end(false);
  }
  start_.exchange->respond(error_response(503, "The server is shutting down."));
}

}  // namespace sluice
