#include "observe/request_log.h"

#include <algorithm>

#include "observe/prometheus.h"

namespace sluice {
namespace {

bool is_of(const RequestAccount& account, uint32_t tenant) { return tenant == 0 || account.tenant == tenant; }

bool is_named(const RequestAccount& account, std::string_view id) {
  return account.request_id == id || account.answer_id == id;
}

size_t count(const TokenLists& lists) {
  size_t n = 0;
  for (const auto& list : lists) n += list.size();
  return n;
}

}  // namespace

double least_kv_reuse(std::span<const TokenAccount> tokens) {
  const size_t window = std::min(kReuseWindow, tokens.size());
  double sum = 0, least = double(window);
  for (size_t i = 0; i < tokens.size(); ++i) {
    sum += tokens[i].kv_hit;
    if (i >= window) sum -= tokens[i - window].kv_hit;
    if (i + 1 >= window) least = std::min(least, sum);
  }
  return window > 0 ? least / double(window) : 0;
}

RequestLog::RequestLog() {
  for (int i = 0; i < kSpans; ++i) {
    span_time_[size_t(i)] = &meter::counter("sluice_request_span_seconds_total",
                                            "Time of requests whose answers have ended, by what they were in: "
                                            "the spans of all add up to the sum of "
                                            "their wall times.",
                                            prometheus_label("span", span_name(Span(i))), 1e-9);
  }
}

void RequestLog::begin(std::shared_ptr<const RunningRequest> request) {
  std::lock_guard lock(mutex_);
  running_.push_back(std::move(request));
}

void RequestLog::finish(const RunningRequest* running, RequestAccount account, TokenLists tokens) {
  for (size_t i = 0; i < size_t(kSpans); ++i) span_time_[i]->add(uint64_t(account.spans().ns[i]));
  Kept kept{std::make_shared<const RequestAccount>(std::move(account)),
            std::make_shared<const TokenLists>(std::move(tokens))};
  if (listener_) listener_(kept.account);
  const size_t held = count(*kept.tokens);
  std::vector<Kept> dropped;  // freed after the lock
  std::shared_ptr<const RunningRequest> done;
  std::lock_guard lock(mutex_);
  if (const auto it =
          std::find_if(running_.begin(), running_.end(), [&](const auto& r) { return r.get() == running; });
      it != running_.end()) {
    done = std::exchange(*it, std::move(running_.back()));
    running_.pop_back();
  }
  kept_.push_back(std::move(kept));
  tokens_held_.push_back(held);
  tokens_ += held;
  if (kept_.size() > kRequests) {
    tokens_ -= tokens_held_.front();
    dropped.push_back(std::move(kept_.front()));
    kept_.pop_front();
    tokens_held_.pop_front();
  }
  for (size_t i = 0; tokens_ > kTokens; ++i) {
    tokens_ -= std::exchange(tokens_held_[i], 0);
    dropped.push_back({nullptr, std::move(kept_[i].tokens)});
  }
}

void RequestLog::refuse(RequestAccount account) const {
  if (listener_) listener_(std::make_shared<const RequestAccount>(std::move(account)));
}

std::optional<RequestLog::Kept> RequestLog::find(std::string_view id, uint32_t tenant) const {
  std::lock_guard lock(mutex_);
  const auto it = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) {
    return is_named(*kept.account, id) && is_of(*kept.account, tenant);
  });
  return it == kept_.rend() ? std::nullopt : std::optional(*it);
}

std::shared_ptr<const RunningRequest> RequestLog::find_running(std::string_view id, uint32_t tenant) const {
  std::lock_guard lock(mutex_);
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& running) {
    return is_named(running->head, id) && is_of(running->head, tenant);
  });
  return it == running_.end() ? nullptr : *it;
}

std::vector<RequestLog::Kept> RequestLog::recent(size_t count, uint32_t tenant) const {
  std::vector<Kept> out;
  out.reserve(std::min(count, kRequests));
  std::lock_guard lock(mutex_);
  for (auto it = kept_.rbegin(); it != kept_.rend() && out.size() < count; ++it) {
    if (is_of(*it->account, tenant)) out.push_back(*it);
  }
  return out;
}

}  // namespace sluice
