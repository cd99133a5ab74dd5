// For tests: a scheduler with a device that takes as long as a formula says, two steps in flight, on a clock of
// its own. Answers have the length that is asked for.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "sched/scheduler.h"

namespace sluice {

// An H200 with the 8B shape as docs/performance.md measured it, or two cores with SmolLM2: ns.
struct DeviceTimes {
  double fixed, one_token, context, prompt_row, pair;
  int tile_rows = 1;  // attention computes a prompt's rows in tiles of so many

  double prompt(int first, int count) const {
    return count * prompt_row + (count + tile_rows - 1) / tile_rows * tile_rows * pair * (first + count / 2.0);
  }
};
inline constexpr DeviceTimes kH200 = {3.75e6, 0.0245e6, 8, 0.02e6, 0.95, 64};
inline constexpr DeviceTimes kTwoCores = {2.4e6, 1.0e6, 150, 0.6e6, 150};

class VirtualServer {
 public:
  VirtualServer(const DeviceTimes& device, const Policy& policy, int max_length, int blocks)
      : device_(device),
        policy_(policy),
        layout_{.windows = {0}, .max_length = max_length, .max_step_tokens = policy.step_tokens},
        scheduler_(policy, layout_, blocks) {}

  struct Wish {
    TimeNs at = 0;
    int prompt = 0, answer = 0;
    Lane lane = Lane::standard;
    uint32_t tenant = 0;
  };
  struct Outcome {
    Wish wish;
    TimeNs first = 0, end = 0, last = 0;
    std::vector<TimeNs> gaps;  // between tokens
    int preemptions = 0;
    TimeNs latency() const { return end - wish.at; }
  };

  void submit(const Wish& wish) { arrivals_.push_back(wish); }
  // Called when a request has ended; may submit another one, not before now().
  std::function<void(const Outcome&)> on_end;
  TimeNs now() const { return now_; }
  Scheduler& scheduler() { return scheduler_; }
  int64_t computed_tokens() const { return computed_tokens_; }

  std::deque<Outcome> run() {
    sort_arrivals();
    while (finished_ < outcomes_.size() || !arrivals_.empty()) {
      arrive();
      if (flying_.size() < 2 && launch()) continue;
      if (!flying_.empty()) {
        now_ = std::max(now_, flying_.front()->done);
        land();
      } else {
        TimeNs next = arrivals_.empty() ? 0 : arrivals_.front().at;
        if (const TimeNs flush = scheduler_.next_flush()) next = next ? std::min(next, flush) : flush;
        CHECK(next > 0, "a server that stands still");
        now_ = std::max(now_ + 1, next);
      }
    }
    return std::move(outcomes_);
  }

 private:
  struct Live : Sequence {
    using Sequence::Sequence;
    size_t outcome = 0;
  };
  struct Flight {
    StepPlan plan;
    TimeNs took = 0, done = 0;
  };

  void sort_arrivals() {
    std::stable_sort(arrivals_.begin(), arrivals_.end(),
                     [](const Wish& a, const Wish& b) { return a.at < b.at; });
  }

  void arrive() {
    for (; !arrivals_.empty() && arrivals_.front().at <= now_; arrivals_.pop_front()) {
      const Wish wish = arrivals_.front();
      Request r;
      r.prompt.assign(size_t(wish.prompt), 3);
      r.max_tokens = wish.answer;
      r.lane = wish.lane;
      r.tenant = wish.tenant;
      auto s = std::make_unique<Live>(std::move(r));
      s->arrived_at = wish.at;
      s->outcome = outcomes_.size();
      outcomes_.emplace_back().wish = wish;
      CHECK(scheduler_.add(s.get()));
      sequences_.push_back(std::move(s));
    }
  }

  bool launch() {
    auto f = std::make_unique<Flight>();
    f->plan.reserve(policy_.max_running, policy_.max_queue);
    scheduler_.plan(now_, f->plan);
    if (f->plan.empty()) return false;
    double took = device_.fixed;
    for (const PlanEntry& e : f->plan.entries) {
      computed_tokens_ += e.count;
      took += e.count == 1 ? device_.one_token + device_.context * e.first : device_.prompt(e.first, e.count);
    }
    f->took = TimeNs(took);
    f->done = std::max(now_, free_at_) + f->took;
    free_at_ = f->done;
    flying_.push_back(std::move(f));
    return true;
  }

  void land() {
    const auto f = std::move(flying_.front());
    flying_.pop_front();
    scheduler_.note_step(f->plan, f->took);
    for (const PlanEntry& e : f->plan.entries) {
      auto& s = static_cast<Live&>(*e.sequence);
      const bool last = e.samples && s.generated() + 1 == s.request.max_tokens;
      scheduler_.land(e, e.samples ? 7 : -1, last ? FinishReason::length : FinishReason::none, now_);
      Outcome& o = outcomes_[s.outcome];
      if (e.samples) {
        if (o.last)
          o.gaps.push_back(now_ - o.last);
        else
          o.first = now_;
        o.last = now_;
      }
      if (!last) continue;
      o.end = now_;
      o.preemptions = s.preemptions;
      ++finished_;
      if (on_end) {
        const Outcome ended = o;
        on_end(ended);
        sort_arrivals();
      }
    }
  }

  const DeviceTimes device_;
  const Policy policy_;
  const KvLayout layout_;
  Scheduler scheduler_;
  std::deque<Wish> arrivals_;
  std::deque<Outcome> outcomes_;
  std::deque<std::unique_ptr<Live>> sequences_;
  std::deque<std::unique_ptr<Flight>> flying_;
  TimeNs now_ = 1, free_at_ = 0;
  size_t finished_ = 0;
  int64_t computed_tokens_ = 0;
};

inline TimeNs percentile(std::vector<TimeNs> values, double share) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, size_t(share * double(values.size())))];
}

}  // namespace sluice
