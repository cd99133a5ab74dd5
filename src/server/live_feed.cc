#include "server/live_feed.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "server/http_error.h"
#include "server/json_writer.h"
#include "server/limits.h"
#include "server/sse.h"

namespace sluice {

using Event = std::shared_ptr<const std::string>;

// Of one client. The feed's thread leaves events here; the connection's thread takes them.
class LiveFeed::Listener final : public HttpListener {
 public:
  Listener(LiveFeed& feed, std::shared_ptr<HttpExchange> exchange)
      : feed_(feed), exchange_(std::move(exchange)) {
    feed_.listening_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Listener() override { feed_.listening_.fetch_sub(1, std::memory_order_relaxed); }

  // The feed's thread. Null: the last one was sent.
  void leave(Event event) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(event));
    }
    exchange_->wake();
  }

  void on_wake() override {
    std::vector<Event> events;
    {
      std::lock_guard lock(mutex_);
      events.swap(waiting_);
    }
    for (const Event& event : events) {
      if (over_) return;
      if (event == nullptr) return finish(true);
      exchange_->write(*event);
    }
    exchange_->flush();
    if (!over_ && exchange_->unsent() > limits::kStreamHighWater) finish(false);
  }
  void on_writable() override {}
  void on_gone(const char*) override {
    over_ = true;
    feed_.forget(this);
  }
  void on_shutdown() override { finish(true); }

 private:
  void finish(bool complete) {
    over_ = true;
    exchange_->end(complete);
    feed_.forget(this);
  }

  LiveFeed& feed_;  // outlives the connections
  const std::shared_ptr<HttpExchange> exchange_;
  bool over_ = false;  // the connection's thread
  std::mutex mutex_;
  std::vector<Event> waiting_;  // guarded by mutex_
};

void LiveFeed::serve(std::shared_ptr<ServedModel> model, std::string model_name, LiveSources sources) {
  {
    std::lock_guard lock(mutex_);
    next_ = Served{std::move(model), std::move(model_name), std::move(sources)};
  }
  if (thread_.joinable()) return;
  take_up();
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "sluice-live");
    run();
  });
}

// Steps of another engine are counted anew, and what is drawn of them begins anew too. Listeners hear whose
// they are.
void LiveFeed::take_up() {
  std::vector<std::shared_ptr<Listener>> to;
  std::shared_ptr<ServedModel> before;  // goes without the lock
  Event event;
  {
    std::lock_guard lock(mutex_);
    if (!next_) return;
    before = std::exchange(model_, std::move(next_->model));
    model_name_ = std::move(next_->name);
    sources_ = std::move(next_->sources);
    next_.reset();
    to = listeners_;
    if (!to.empty()) event = std::make_shared<const std::string>(hello());
  }
  if (before != nullptr) sampler_ = LiveSampler(), history_.clear();
  for (const auto& listener : to) listener->leave(event);
}

void LiveFeed::stop() {
  std::vector<std::shared_ptr<Listener>> last;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    last.swap(listeners_);
  }
  wake_.notify_all();
  for (const auto& listener : last) listener->leave(nullptr);
  if (thread_.joinable()) thread_.join();
}

void LiveFeed::run() {
  auto next = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    publish(now_ns());
    lock.lock();
    // After a long measurement the beat starts anew: samples are never made up for.
    next = std::max(next + std::chrono::seconds(1), std::chrono::steady_clock::now());
    wake_.wait_until(lock, next, [this] { return stopping_; });
  }
}

void LiveFeed::measure_if_idle(const LiveSample& sample) {
  if (sources_.measure_peaks == nullptr ||
      (listeners() == 0 && asked_at_.load(std::memory_order_relaxed) == 0) || sample.running > 0 ||
      sample.waiting > 0)
    return;
  const LivePeaks peaks = std::exchange(sources_.measure_peaks, nullptr)();
  std::lock_guard lock(mutex_);
  sources_.limits.peaks = peaks;
}

// A measurement that other programs disturbed came out too low; steps that do better show it.
void LiveFeed::raise_peaks(const LiveSample& sample) {
  LivePeaks& peaks = sources_.limits.peaks;
  if (peaks.bytes_s > 0) peaks.bytes_s = std::max(peaks.bytes_s, sample.bytes_s);
  if (peaks.flops_s > 0) peaks.flops_s = std::max(peaks.flops_s, sample.flops_s);
}

MachineReport LiveFeed::machine() const {
  std::lock_guard lock(mutex_);
  return sources_.machine;
}

Vitals LiveFeed::vitals(double window_s) const {
  const TimeNs now = now_ns();
  asked_at_.store(now, std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  const std::shared_ptr<ServedModel> model = model_;
  lock.unlock();
  Vitals vitals = history_.window(window_s, model->engine().step_ledger(), HostReading{now, read_host_state()});
  vitals.card = model->engine().info().device.is_card();
  lock.lock();
  vitals.cards = cards_;
  vitals.seats = sources_.limits.seats, vitals.peaks = sources_.limits.peaks;
  return vitals;
}

// Host and card each second while somebody asks for what they say, else seldom: once for the next to ask to
// compare with.
bool LiveFeed::wants_look(TimeNs now) {
  constexpr TimeNs kAsked = TimeNs(VitalsHistory::kLongestWindow_s) * 1'000'000'000, kSeldom = 30'000'000'000;
  const TimeNs asked = asked_at_.load(std::memory_order_relaxed);
  if (looked_at_ && now - looked_at_ < kSeldom && (!asked || now - asked > kAsked)) return false;
  looked_at_ = now;
  return true;
}

void LiveFeed::publish(TimeNs now) {
  take_up();
  std::vector<Meter> meters = meter::all();
  // What a canary's engine counts is not what the page is about.
  std::erase_if(meters, [](const Meter& m) { return m.labels.find("pool=\"canary\"") != std::string::npos; });
  const StepLedger* ledger = model_->engine().step_ledger();
  const LiveSample sample = sampler_.sample(meters, ledger, now);
  const bool looks = wants_look(now);
  history_.note(meters, ledger, looks ? std::optional(read_host_state()) : std::nullopt, now);
  std::vector<CardReading> cards;
  if (looks && sources_.read_cards != nullptr) cards = sources_.read_cards();
  const int64_t unix_s = std::time(nullptr);
  Point point{unix_s, sample.prompt_tokens_s, sample.generated_tokens_s, sample.running, sample.waiting};
  point.kv = sample.kv_total > 0 ? sample.kv_used / sample.kv_total : 0;
  point.first_token_ms = sample.first_token.count > 0 ? 1e3 * sample.first_token.p50 : 0;
  point.inter_token_ms = sample.inter_token.count > 0 ? 1e3 * sample.inter_token.p50 : 0;
  std::vector<std::shared_ptr<Listener>> to;
  Event event;
  {
    std::lock_guard lock(mutex_);
    raise_peaks(sample);
    if (looks) cards_ = std::move(cards);
    points_.push_back(point);
    if (points_.size() > kPoints) points_.pop_front();
    to = listeners_;
    if (!to.empty()) event = std::make_shared<const std::string>(this->event(sample, unix_s));
  }
  for (const auto& listener : to) listener->leave(event);
  measure_if_idle(sample);
}

void LiveFeed::listen(const std::shared_ptr<HttpExchange>& exchange, bool head_only) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  head.headers = {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}};
  if (head_only) return exchange->respond(std::move(head));
  std::string first;
  std::shared_ptr<Listener> listener;
  {
    std::lock_guard lock(mutex_);
    if (!stopping_ && listeners_.size() < size_t(limits::kLiveListeners)) {
      listener = std::make_shared<Listener>(*this, exchange);
      listeners_.push_back(listener);
      first = hello();
    }
  }
  if (listener == nullptr) return exchange->respond(error_response(429, "Too many listen already."));
  exchange->listen(listener);
  exchange->begin(std::move(head));
  exchange->write(first);
  exchange->flush();
}

void LiveFeed::forget(const Listener* listener) {
  std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [&](const auto& l) { return l.get() == listener; });
}

namespace {

// Four digits say all that a chart shows, and keep the events short.
void rounded(JsonWriter& w, std::string_view key, double value) {
  if (!std::isfinite(value)) value = 0;
  const double scale = value == 0 ? 1 : std::pow(10.0, 3 - std::floor(std::log10(std::abs(value))));
  w.key(key).number(std::round(value * scale) / scale);
}

void quantiles(JsonWriter& w, std::string_view key, const Quantiles& q) {
  w.key(key);
  if (q.count == 0) return void(w.null());
  w.begin_object();
  rounded(w, "p50", 1e3 * q.p50);
  rounded(w, "p95", 1e3 * q.p95);
  rounded(w, "p99", 1e3 * q.p99);
  w.key("count").integer(int64_t(q.count)).end_object();
}

void shares(JsonWriter& w, std::string_view key, const std::vector<LiveShare>& all, std::string_view used,
            std::string_view other) {
  w.key(key).begin_array();
  for (const LiveShare& s : all) {
    w.begin_object().key("name").string(s.name);
    rounded(w, used, s.used);
    rounded(w, other, s.other);
    w.end_object();
  }
  w.end_array();
}

void split(JsonWriter& w, const StepSplit& s) {
  w.key("step");
  if (s.steps == 0) return void(w.null());
  w.begin_object();
  rounded(w, "plan_ms", s.plan_ms);
  rounded(w, "build_ms", s.build_ms);
  rounded(w, "launch_ms", s.launch_ms);
  rounded(w, "execute_ms", s.execute_ms);
  rounded(w, "gap_ms", s.gap_ms);
  rounded(w, "commit_ms", s.commit_ms);
  rounded(w, "h2d_us", s.to_device_us);
  rounded(w, "kernels_us", s.kernels_us);
  rounded(w, "d2h_us", s.to_host_us);
  rounded(w, "tokens", s.tokens);
  rounded(w, "sequences", s.sequences);
  w.end_object();
}

// Null where the peak was not measured.
void of_peak(JsonWriter& w, std::string_view key, double value, double peak) {
  if (peak > 0) return rounded(w, key, value / peak);
  w.key(key).null();
}

}  // namespace

std::string LiveFeed::hello() const {
  const EngineInfo& info = model_->engine().info();
  std::string json;
  JsonWriter w(json);
  w.begin_object().key("model").string(model_name_).key("device").string(info.device.name);
  w.key("instruction_set").string(info.device.instruction_set).key("threads").integer(info.device.threads);
  w.key("context").integer(info.context).key("seats").integer(sources_.limits.seats);
  w.key("blocks").integer(info.blocks).key("block_tokens").integer(info.block_tokens);
  w.key("points").begin_array();
  for (const Point& p : points_) {
    w.begin_object().key("t").integer(p.unix_s);
    rounded(w, "in", p.in);
    rounded(w, "out", p.out);
    w.key("running").integer(p.running).key("waiting").integer(p.waiting);
    rounded(w, "kv", p.kv);
    rounded(w, "first_token", p.first_token_ms);
    rounded(w, "inter_token", p.inter_token_ms);
    w.end_object();
  }
  w.end_array().end_object();
  std::string out = "event: hello\n";
  append_sse(out, json);
  return out;
}

std::string LiveFeed::event(const LiveSample& s, int64_t unix_s) const {
  std::string json;
  JsonWriter w(json);
  w.begin_object().key("t").integer(unix_s).key("running").integer(s.running).key("waiting").integer(s.waiting);
  shares(w, "lanes", s.lanes, "running", "waiting");
  rounded(w, "in", s.prompt_tokens_s);
  rounded(w, "out", s.generated_tokens_s);
  rounded(w, "computed", s.computed_tokens_s);
  rounded(w, "steps", s.steps_s);
  rounded(w, "finished", s.finished_s);
  rounded(w, "rejected", s.rejected_s);
  w.key("preemptions").integer(int64_t(s.preemptions));
  quantiles(w, "first_token", s.first_token);
  quantiles(w, "inter_token", s.inter_token);
  quantiles(w, "queue", s.queue);
  w.key("batch").begin_array();
  for (const BatchBucket& b : s.batch) {
    w.begin_object().key("upto");
    if (std::isfinite(b.upto))
      w.integer(int64_t(b.upto));
    else
      w.null();
    w.key("steps").integer(int64_t(b.steps)).end_object();
  }
  w.end_array().key("kv").begin_object();
  rounded(w, "used", s.kv_used);
  rounded(w, "total", s.kv_total);
  shares(w, "tiers", s.tiers, "used", "total");
  w.key("bytes").begin_object();
  for (const LiveShare& state : s.kv_bytes) w.key(state.name).integer(int64_t(state.used));
  w.end_object();
  rounded(w, "fragmentation", s.kv_fragmentation);
  w.key("prefix_hits");
  if (s.prefix_hit_ratio >= 0)
    w.number(std::round(1e4 * s.prefix_hit_ratio) / 1e4);
  else
    w.null();
  w.end_object();
  split(w, s.split);
  rounded(w, "busy", s.busy_ratio);
  rounded(w, "bytes_s", s.bytes_s);
  rounded(w, "flops_s", s.flops_s);
  of_peak(w, "bandwidth", s.bytes_s, sources_.limits.peaks.bytes_s);
  of_peak(w, "compute", s.flops_s, sources_.limits.peaks.flops_s);
  const Verdict verdict = what_holds_back(s, sources_.limits);
  w.key("verdict")
      .begin_object()
      .key("cause")
      .string(verdict.cause)
      .key("text")
      .string(verdict.text)
      .end_object();
  w.end_object();
  std::string out;
  append_sse(out, json);
  return out;
}

}  // namespace sluice
