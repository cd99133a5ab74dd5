#include "engine/answer_mask.h"

#include <immintrin.h>
#include <pthread.h>

#include <algorithm>

#include "base/clock.h"
#include "base/meter.h"

namespace sluice {
namespace {

// Far more than a mask takes (tens of microseconds), far less than a step on most machines. Of CPU time: by the
// clock, a thread that a busy machine kept waiting made its answer slow for good, and every second step went
// without it.
constexpr TimeNs kSlowNs = 2'000'000;

void allow(std::vector<uint32_t>& words, int32_t id) { words[size_t(id) / 32] |= 1u << (id % 32); }
void forbid(std::vector<uint32_t>& words, int32_t id) { words[size_t(id) / 32] &= ~(1u << (id % 32)); }
bool is_allowed(const std::vector<uint32_t>& words, int32_t id) {
  return words[size_t(id) / 32] >> (id % 32) & 1;
}

struct Meters {
  Histogram& seconds =
      meter::histogram("sluice_mask_seconds", "CPU time to make the mask of one token.", meter::kSeconds);
  Counter& slow =
      meter::counter("sluice_mask_slow_total", "Answers whose masks take so long that they are planned apart.");
  Counter& failed =
      meter::counter("sluice_mask_failed_total", "Answers whose grammar could not be followed to the end.");
};
Meters& meters() {
  static Meters all;
  return all;
}

}  // namespace

void MaskWait::wait() const {
  constexpr int kSpins = 2000;
  for (int i = 0; i < kSpins; ++i) {
    if (made->load(std::memory_order_acquire) >= wanted) return;
    _mm_pause();
  }
  for (uint32_t seen; (seen = made->load(std::memory_order_acquire)) < wanted;) made->wait(seen);
}

MaskThreads::MaskThreads(int threads, size_t max_jobs, Bell& bell) : jobs_(max_jobs), engine_bell_(bell) {
  meters();
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

MaskThreads::~MaskThreads() {
  quit_.store(true);
  posted_.ring();
  for (std::thread& t : threads_) t.join();
}

void MaskThreads::post(const std::shared_ptr<AnswerMask>& answer, int32_t sampled) {
  if (jobs_.push({answer, sampled})) return posted_.ring();
  // Masks of answers that have gone fill the queue: rather than wait, this one fails.
  answer->failed.store(true);
  std::fill(answer->words.begin(), answer->words.end(), ~uint32_t{0});
  publish(*answer);
}

void MaskThreads::run() {
  pthread_setname_np(pthread_self(), "sluice-masks");
  for (;;) {
    const uint32_t heard = posted_.count();
    Job job;
    if (jobs_.pop(job)) {
      if (job.answer.use_count() > 1) make(*job.answer, job.sampled);  // else nobody wants it any more
    } else if (quit_.load()) {
      return;
    } else {
      posted_.wait(heard);
    }
  }
}

void MaskThreads::make(AnswerMask& answer, int32_t sampled) {
  const TimeNs began = thread_cpu_ns();
  auto& words = answer.words;
  const TokenConstraint::State state =
      answer.failed.load() ? TokenConstraint::State::kFailed : answer.constraint->advance(sampled, words);
  const uint32_t tokens = answer.made.load(std::memory_order_relaxed);  // sampled so far
  if (state == TokenConstraint::State::kOpen) {
    // End ids before min_tokens only where the grammar leaves nothing else.
    if (int64_t(tokens) < answer.min_tokens) {
      const bool ends = std::any_of(answer.end_ids.begin(), answer.end_ids.end(),
                                    [&](int32_t id) { return is_allowed(words, id); });
      for (const int32_t id : answer.end_ids) forbid(words, id);
      if (ends && std::all_of(words.begin(), words.end(), [](uint32_t w) { return w == 0; }))
        for (const int32_t id : answer.end_ids) allow(words, id);
    }
  } else if (state == TokenConstraint::State::kOver && !answer.end_ids.empty()) {
    std::fill(words.begin(), words.end(), 0);
    for (const int32_t id : answer.end_ids) allow(words, id);
    answer.over.store(true);
  } else {  // whatever is sampled now is thrown away
    std::fill(words.begin(), words.end(), ~uint32_t{0});
    (state == TokenConstraint::State::kOver ? answer.over : answer.failed).store(true);
    meters().failed.add(state == TokenConstraint::State::kFailed);
  }
  const TimeNs took = thread_cpu_ns() - began;
  // The first is waited for by nobody, and sets up what the others use.
  if (tokens > 0 && took > kSlowNs && !answer.slow.exchange(true)) meters().slow.add();
  meters().seconds.observe(double(took) * 1e-9);
  publish(answer);
}

void MaskThreads::publish(AnswerMask& answer) {
  answer.made.fetch_add(1);
  answer.made.notify_all();
  if (answer.awaited.exchange(false)) engine_bell_.ring();
}

}  // namespace sluice
