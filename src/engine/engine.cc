#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <thread>

#include "base/faults.h"
#include "base/probes.h"
#include "engine/make_engine.h"
#include "engine/step_loop.h"

namespace sluice {
namespace {

constexpr size_t kOutboxEvents = 128;  // a client this far behind pauses its sequence
constexpr size_t kRecordsShown = 16;

// The loops of this process, as many of them as there are places: one that serves, its canary, and those that
// take their places.
std::array<std::atomic<const StepLoop*>, 4> shown_on_bug{};

void show_on_bug(const StepLoop* loop) {
  for (auto& place : shown_on_bug)
    if (const StepLoop* none = nullptr; place.compare_exchange_strong(none, loop)) return;
}

void forget_on_bug(const StepLoop* loop) {
  for (auto& place : shown_on_bug) {
    const StepLoop* mine = loop;
    place.compare_exchange_strong(mine, nullptr);
  }
}

// On whichever thread found the bug, while the others go on: the ledger is made for that, and a step under way
// is written to by nobody but the executor, times only.
void print_last_steps() {
  for (const auto& place : shown_on_bug) {
    const StepLoop* loop = place.load();
    if (loop == nullptr) continue;
    for (const StepRecord& r : loop->ledger().last(kRecordsShown))
      std::fprintf(stderr, "sluice: %s\n", describe(r).c_str());
    loop->executor().for_each_under_way(
        [](const StepRecord& r) { std::fprintf(stderr, "sluice: under way: %s\n", describe(r).c_str()); });
  }
}

Error invalid(std::string field, std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(field)};
}

// What the engine itself relies on; the server has checked types and ranges of the API before.
Status check_sampling(const SamplingParams& p, int vocab) {
  const auto finite = [](float v) { return std::isfinite(v); };
  if (!finite(p.temperature) || p.temperature < 0)
    return invalid("temperature", "temperature must not be negative");
  if (!(p.top_p > 0 && p.top_p <= 1)) return invalid("top_p", "top_p must be above 0 and at most 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return invalid("min_p", "min_p must be between 0 and 1");
  if (!finite(p.presence_penalty)) return invalid("presence_penalty", "presence_penalty must be a number");
  if (!finite(p.frequency_penalty)) return invalid("frequency_penalty", "frequency_penalty must be a number");
  if (!finite(p.repetition_penalty) || p.repetition_penalty <= 0)
    return invalid("repetition_penalty", "repetition_penalty must be above 0");
  if (p.top_logprobs > kMaxTopLogprobs || p.prompt_top_logprobs > kMaxTopLogprobs)
    return invalid("logprobs", fmt::format("at most {} log-probabilities per token", kMaxTopLogprobs));
  for (const auto& [id, bias] : p.logit_bias)
    if (id < 0 || id >= vocab || std::isnan(bias))
      return invalid("logit_bias", fmt::format("logit_bias: token id {} is not in 0..{}", id, vocab - 1));
  return {};
}

Status check_request(const Request& r, const EngineInfo& info) {
  const int vocab = info.spec.vocab;
  if (r.prompt.empty()) return invalid("prompt", "the prompt is empty");
  if (r.prompt.size() >= size_t(info.context))
    return invalid(
        "prompt", fmt::format("the prompt has {} tokens; {}, and at least one of them must be left to generate",
                              r.prompt.size(), describe_context(info)));
  for (int32_t id : r.prompt)
    if (id < 0 || id >= vocab)
      return invalid("prompt", fmt::format("prompt: token id {} is not in 0..{}", id, vocab - 1));
  if (r.max_tokens < 0) return invalid("max_tokens", "max_tokens must not be negative");
  if (r.min_tokens < 0) return invalid("min_tokens", "min_tokens must not be negative");
  return check_sampling(r.sampling, vocab);
}

}  // namespace

std::string describe_context(const EngineInfo& info) {
  if (info.context >= info.context_wanted)
    return fmt::format("the context of this model is {} tokens", info.context);
  return fmt::format(
      "the context is {} tokens and not {}, since the {} blocks of {} tokens that keys and values have hold no "
      "more (engine.kv_bytes)",
      info.context, info.context_wanted, info.blocks, info.block_tokens);
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineInfo info, const StepLoopParts& parts, std::unique_ptr<StepRunner> runner,
             const WarmUp& warm_up, const MeterPlace& meters)
      : info_(std::move(info)),
        meters_(meters.pool),
        runner_(std::move(runner)),
        door_(std::make_shared<EngineDoor>(meters.gauges)),
        lane_places_((parts.policy.max_queue - info_.max_requests) / kLanes),
        policy_(parts.policy),
        loop_(parts, *runner_, *door_, meters_) {
    show_on_bug(&loop_);
    set_check_hook(print_last_steps);
    WarmUp fitting = warm_up;
    for (int& tokens : fitting.prompts) tokens = std::min(tokens, info_.context - 1);
    loop_.warm_up(fitting);
    thread_ = std::thread([this] { loop_.run(); });
    // By whoever starts it: cli/machine_binding.cc finds threads by name as soon as the model is there.
    pthread_setname_np(thread_.native_handle(), "sluice-engine");
  }

  ~EngineImpl() override {
    drain(now_ns());
    door_->quit.store(true);
    door_->bell.ring();
    thread_.join();
    forget_on_bug(&loop_);
  }

  const EngineInfo& info() const override { return info_; }
  EngineStatus status() const override {
    EngineStatus status = loop_.status();
    status.stuck |= given_up_.load();
    return status;
  }
  void give_up() override { given_up_.store(true); }
  const StepLedger* step_ledger() const override { return &loop_.ledger(); }

  Result<std::shared_ptr<RequestStream>> submit(Request request, std::function<void()> notify) override {
    auto stream = enqueue(std::move(request), std::move(notify));
    if (stream) ring();
    return stream;
  }

  void show(bool shown) override {
    door_->shown.store(shown);
    door_->bell.ring();
  }

  void ring() override {
    if (unheard_.exchange(false)) door_->bell.ring();
  }

  Result<std::shared_ptr<RequestStream>> enqueue(Request request, std::function<void()> notify) override {
    meters_.started.add();
    if (Status ok = check_request(request, info_); !ok) {
      meters_.rejected_invalid.add();
      return std::move(ok).error();
    }
    if (request.pooling != Pooling::none && info_.device.is_card()) {
      meters_.rejected_invalid.add();
      return Error{ErrorCode::kUnsupported, "hidden states are pooled on a CPU only, not on a card"};
    }
    if (faults::armed() && faults::met_at(Fault::alloc_failure, {0})) {
      meters_.rejected_full.add();
      return Error{ErrorCode::kResourceExhausted, "there is no memory for another request; try again later"};
    }
    const int room = info_.context - int(request.prompt.size());
    request.max_tokens = std::min(request.max_tokens, room);
    request.min_tokens = std::min(request.min_tokens, request.max_tokens);
    if (request.pooling != Pooling::none) {
      // Where all rows are wanted, they are those that log-probabilities of the prompt need: none is found
      // cached.
      request.max_tokens = request.min_tokens = 0;
      request.sampling.prompt_top_logprobs = request.pooling == Pooling::mean ? 0 : -1;
    }
    std::erase_if(request.stop_ids, [&](int32_t id) { return id < 0 || id >= info_.spec.vocab; });

    // Counted before the flag is read, as drain() sets the flag before it reads the count: one of the two sees
    // the other.
    const Lane lane = request.lane;
    const int others = door_->live.fetch_add(1);
    const int of_lane = door_->live_of[size_t(lane)].fetch_add(1);
    if (door_->draining.load()) {
      door_->leave(lane);
      meters_.rejected_draining.add();
      if (probe::shed_on()) probe::fire::shed(request.id.c_str(), "draining");
      return Error{ErrorCode::kUnavailable, "the server is shutting down"};
    }
    if (others >= info_.max_requests && of_lane >= lane_places_) {
      door_->leave(lane);
      meters_.rejected_full.add();
      if (probe::shed_on()) probe::fire::shed(request.id.c_str(), "queue_full");
      return Error{ErrorCode::kResourceExhausted,
                   fmt::format("{} requests are running or waiting already; try again later", others)};
    }
    door_->queued.fetch_add(1);

    auto stream =
        std::make_shared<RequestStream>(std::clamp<size_t>(size_t(request.max_tokens) + 2, 8, kOutboxEvents));
    stream->notify_ = std::move(notify);
    stream->door_ = door_;
    stream->times_.submitted = now_ns();
    stream->progress_.spans.start(Span::queue, stream->times_.submitted);
    if (request.pooling != Pooling::none)
      stream->pooled_.assign(size_t(info_.spec.hidden), 0.0f);
    else if (request.sampling.prompt_top_logprobs >= 0)
      stream->prompt_logprobs_.reserve(request.prompt.size());
    if (probe::request_start_on())
      probe::fire::request_start(request.id.c_str(), uint64_t(stream.get()), int64_t(request.prompt.size()),
                                 request.max_tokens);
    auto live = std::make_unique<LiveRequest>(std::move(request), info_.end_ids, stream, info_.spec.vocab);
    if (loop_.names_blocks()) live->name_blocks(info_.block_tokens);
    loop_.hand_over(std::move(live));
    unheard_.store(true);
    return stream;
  }

  Result<std::string> reschedule(const EngineConfig& config) override {
    Result<Policy> made = policy_with(policy_, config.batching, config.scheduling, config.mixed_prompt_tokens);
    if (!made) return std::move(made).error();
    std::string change = describe_change(policy_, *made);
    if (change.empty()) return change;
    if (!loop_.replace_policy(*made))
      return Error{ErrorCode::kResourceExhausted, "earlier changes have not been taken up yet"};
    policy_ = *made;
    return change;
  }

  // An age of 0 is what it means. Where earlier changes have not been taken up yet, those that wait have to
  // wait for their window.
  void stop_gathering() override {
    policy_.batching.window.max_wait_ns = 0;
    loop_.replace_policy(policy_);
  }

  void drain(TimeNs deadline) override {
    door_->draining.store(true);
    stop_gathering();
    wait_until_empty(deadline);
    door_->cancel_all.store(true);
    door_->cancels.fetch_add(1);
    door_->bell.ring();
    wait_until_empty(0);
  }

 private:
  void wait_until_empty(TimeNs until) {
    for (;;) {
      const uint32_t heard = door_->emptied.count();
      if (door_->live.load() == 0) return;
      if (until && now_ns() >= until) return;
      door_->emptied.wait(heard, until);
    }
  }

  const EngineInfo info_;
  EngineMeters meters_;
  std::unique_ptr<StepRunner> runner_;
  std::shared_ptr<EngineDoor> door_;
  std::atomic<bool> given_up_{false};
  std::atomic<bool> unheard_{false};  // handed over since the bell was last rung
  const int lane_places_;             // of a lane's own at the door, however many others there are
  Policy policy_;                     // as last handed to the loop
  StepLoop loop_;
  std::thread thread_;  // last: it uses all of the above
};

std::unique_ptr<Engine> make_engine(EngineInfo info, const Policy& policy, const KvLayout& layout,
                                    const ModelCost& cost, std::unique_ptr<StepRunner> runner,
                                    const WarmUp& warm_up, bool replay, const KvOutside& outside,
                                    const MeterPlace& meters) {
  info.max_requests = policy.max_running + policy.max_queue;
  info.batching = policy.batching;
  // What comes in a burst waits until the loop has looked, though there are seats for it. And each lane has an
  // eighth of the queue that the others cannot fill.
  Policy with_seats = policy;
  with_seats.max_queue = info.max_requests + kLanes * (policy.max_queue / 8);
  const StepLoopParts parts{
      with_seats, layout,          info.blocks, info.blocks ? info.kv_bytes / size_t(info.blocks) : 0,
      cost,       info.spec.vocab, replay,      outside};
  return std::make_unique<EngineImpl>(std::move(info), parts, std::move(runner), warm_up, meters);
}

}  // namespace sluice
