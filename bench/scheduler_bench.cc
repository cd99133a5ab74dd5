// What planning and landing a step costs: `ninja scheduler_bench && scheduler_bench [running [waiting]]`. Every
// sequence generates; as many end as begin, and what waits is spread over lanes, tenants and deadlines. One
// line per case: the median and the 99th percentile over steps, in microseconds.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "sched/scheduler.h"

namespace sluice {
namespace {

// This thread's own processor time: other programs' turns on the core do not count.
TimeNs thread_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return TimeNs(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class Bench {
 public:
  Bench(int running, int waiting, int lanes) : running_(running), waiting_(waiting), lanes_(lanes) {
    policy_.max_running = running;
    policy_.step_tokens = running + 1024;
    policy_.max_queue = waiting + running * 2;
    const KvLayout layout{
        .windows = {0}, .max_length = 2048, .max_step_tokens = policy_.step_tokens, .steps_in_flight = 2};
    scheduler_ = std::make_unique<Scheduler>(policy_, layout, running * 48);
    for (StepPlan& plan : plans_) plan.reserve(policy_.max_running, policy_.max_queue);
  }

  void run(int steps) {
    std::vector<double> took;
    double entries = 0;
    for (int step = 0; step < steps + 300; ++step) {
      fill();
      const double us = turn(plans_[step % 2], step > 0 ? &plans_[(step + 1) % 2] : nullptr);
      if (step < 300) continue;
      took.push_back(us);
      entries += double(plans_[step % 2].entries.size()) / steps;
    }
    std::sort(took.begin(), took.end());
    std::printf("%5.0f sequences a step, %6d waiting, %d lanes: %6.1f us a step (p99 %6.1f), %d ended\n",
                entries, waiting_, lanes_, took[took.size() / 2], took[took.size() * 99 / 100], ended_);
  }

 private:
  void fill() {
    while (int(scheduler_->waiting().size()) < waiting_ ||
           int(scheduler_->running().size() + scheduler_->waiting().size()) < running_ + waiting_) {
      Request r;
      r.prompt.assign(64 + random_() % 128, 3);
      r.max_tokens = int(100 + random_() % 300);
      r.lane = lanes_ == 1 ? Lane::standard : Lane(random_() % kLanes);
      r.tenant = uint32_t(random_() % 50);
      r.deadline = random_() % 2 ? TimeNs(now_ + 20'000 + random_() % 100'000) : 0;
      sequences_.push_back(std::make_unique<Sequence>(std::move(r)));
      scheduler_->add(sequences_.back().get());
    }
    while (!sequences_.empty() && sequences_.front()->gone()) sequences_.pop_front();
  }

  double turn(StepPlan& next, StepPlan* done) {
    const TimeNs begin = thread_ns();
    scheduler_->plan(++now_, next);
    if (done) {
      scheduler_->note_step(*done, 1'000'000 + done->tokens * 5'000);
      for (const PlanEntry& e : done->entries) {
        const Sequence& s = *e.sequence;
        const bool ends = !s.ended() && e.samples && s.generated() + 1 >= s.request.max_tokens;
        ended_ += ends;
        scheduler_->land(e, e.samples && !s.ended() ? 7 : -1, ends ? FinishReason::length : FinishReason::none,
                         now_);
      }
    }
    return double(thread_ns() - begin) * 1e-3;
  }

  const int running_, waiting_, lanes_;
  Policy policy_;
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<std::unique_ptr<Sequence>> sequences_;
  StepPlan plans_[2];
  std::mt19937 random_{1};
  TimeNs now_ = 0;
  int ended_ = 0;
};

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const int running = argc > 1 ? std::atoi(argv[1]) : 1000, waiting = argc > 2 ? std::atoi(argv[2]) : 10000;
  sluice::Bench(running, 0, 1).run(2000);
  sluice::Bench(running, waiting, 1).run(2000);
  sluice::Bench(running, waiting, sluice::kLanes).run(2000);
}
