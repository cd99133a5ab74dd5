// What the loop computes before it is ready: prompts, and a step of each size that can be recorded.
#include <utility>

#include "engine/step_loop.h"

namespace sluice {

void StepLoop::warm_up(const WarmUp& wish) {
  const std::vector<int>& buckets = builder_.buckets();
  const double total = double(wish.prompts.size() + buckets.size());
  double done = 0;
  const auto tell = [&](double more) {
    done += more;
    if (wish.progress) wish.progress(done / total);
  };
  tell(0);
  for (int tokens : wish.prompts) warm_up_prompt(tokens, wish.tells_step_times), tell(1);
  // The largest first: what one of them makes the device allocate then does for all.
  for (auto rows = buckets.rbegin(); rows != buckets.rend(); ++rows) warm_up_bucket(*rows), tell(1);
}

// One prompt through the executor, past queue and meters.
void StepLoop::warm_up_prompt(int tokens, bool tells_time) {
  Request wish;
  wish.prompt.assign(size_t(tokens), 0);
  wish.max_tokens = 1;
  wish.sampling.temperature = 0;
  LiveRequest live(std::move(wish), {}, nullptr, vocab_);
  CHECK(scheduler_.add(&live));
  while (!live.gone()) {
    Step* step = executor_.free_step();
    step->record = {};
    scheduler_.plan(now_ns(), step->plan);
    builder_.build(*step, scheduler_.blocks());
    run_alone(step);
    if (tells_time) scheduler_.note_step(step->plan, step->record.execute_ns);
    scheduler_.land_moves(step->plan, now_ns());
    const PlanEntry& entry = step->plan.entries[0];
    const int32_t id = entry.samples ? step->results_of(0).back().id : -1;
    scheduler_.land(entry, id, entry.samples ? FinishReason::length : FinishReason::none, now_ns());
    executor_.recycle(step);
  }
  scheduler_.forget_prefixes();  // the next is to be computed, too, all of it
}

// A step of padding: once op by op, since code that is loaded while a step is being recorded is trouble, then
// once in each slot. Free steps come in turn, so the two are not the same.
void StepLoop::warm_up_bucket(int rows) {
  for (const bool record : {false, true, true}) {
    Step* step = executor_.free_step();
    step->record = {};
    step->plan.reset();
    builder_.build_padding(*step, rows);
    step->replayable = record;
    run_alone(step);
    executor_.recycle(step);
  }
}

void StepLoop::run_alone(Step* step) {
  executor_.launch(step);
  for (;;) {
    const uint32_t heard = door_.bell.count();
    if (executor_.finished()) return;
    door_.bell.wait(heard);
  }
}

}  // namespace sluice
