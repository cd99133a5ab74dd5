// The masks of one answer's tokens, and the threads that make them while the device computes.
//
// A mask is needed only when its token is sampled, at the end of a step; the token before is known when that
// step begins. So a step is launched without the masks of its rows, and waits for them before it samples:
// MaskWait. A device that takes a whole step at once cannot wait like that: there a sequence is planned when
// its mask is made. So is one whose masks take long, as it would keep everybody in the step.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/bell.h"
#include "sched/token_constraint.h"

namespace sluice {

// Mask number `wanted` (from 1) of an answer is needed.
struct MaskWait {
  const std::atomic<uint32_t>* made = nullptr;
  uint32_t wanted = 0;
  void wait() const;
};

// Made on the client's thread, with all its memory.
struct AnswerMask {
  AnswerMask(std::shared_ptr<TokenConstraint> what, int vocab, std::vector<int32_t> ends, int min)
      : constraint(std::move(what)),
        end_ids(std::move(ends)),
        min_tokens(min),
        words(size_t(vocab + 31) / 32) {}

  // Once the token of the last mask is there: it means nothing, and the answer ends without it.
  bool sampled_in_vain() const { return failed.load() || (over.load() && end_ids.empty()); }

  const std::shared_ptr<TokenConstraint> constraint;
  const std::vector<int32_t> end_ids;
  const int min_tokens;
  // Mask number `made`. Written by a mask thread while no step needs it, read by the executor.
  std::vector<uint32_t> words;
  std::atomic<uint32_t> made{0};
  std::atomic<bool> over{false};     // the answer is complete: nothing but an end id may follow
  std::atomic<bool> failed{false};   // the constraint cannot be followed: what is sampled now is no answer
  std::atomic<bool> slow{false};     // a mask took much work
  std::atomic<bool> awaited{false};  // the engine thread wants to hear of the next one
};

class MaskThreads {
 public:
  // `max_jobs`: posted and not begun, of all that live and as many again that have gone. `bell`: the engine
  // thread's.
  MaskThreads(int threads, size_t max_jobs, Bell& bell);
  ~MaskThreads();

  // Engine thread; allocates nothing. Of one answer the next mask is asked for once the last is made.
  void post(const std::shared_ptr<AnswerMask>& answer, int32_t sampled);

 private:
  struct Job {
    std::shared_ptr<AnswerMask> answer;
    int32_t sampled = -1;
  };
  void run();
  void make(AnswerMask& answer, int32_t sampled);
  void publish(AnswerMask& answer);

  MpmcQueue<Job> jobs_;
  Bell posted_;
  Bell& engine_bell_;
  std::atomic<bool> quit_{false};
  std::vector<std::thread> threads_;
};

}  // namespace sluice
