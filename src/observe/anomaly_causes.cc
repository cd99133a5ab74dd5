#include "observe/anomaly_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace sluice {
namespace {

using Cause = AnomalyCause;

constexpr double kNoteworthy = 0.1;  // of what is more than usual
constexpr int64_t kManyAllocations = 1000;
constexpr double kMoreWork = 2;  // operations or sequences, against what is usual
constexpr double kNearlyFull = 0.9;
constexpr float kHotTemperature = 1.3f;

CauseLink link(Cause cause, std::string text, double share = 1) { return {cause, share, std::move(text)}; }

TimeNs overlap(TimeNs begin, TimeNs length, TimeNs from, TimeNs to) {
  return std::max<TimeNs>(0, std::min(begin + length, to) - std::max(begin, from));
}

const StepRecord* find(std::span<const StepRecord> steps, int64_t step) {
  const auto at = std::find_if(steps.begin(), steps.end(), [&](const StepRecord& r) { return r.step == step; });
  return at == steps.end() ? nullptr : &*at;
}

std::string broken_text(const StepRecord* step, const char* what) {
  if (!step || !step->broken.op)
    return fmt::format("the logits are {}; which op made them so was not looked at, or is past", what);
  if (step->broken.layer < 0)
    return fmt::format("{} was the first op to give what is {}", step->broken.op, what);
  return fmt::format("{} of layer {} was the first op to give what is {}", step->broken.op, step->broken.layer,
                     what);
}

// Charges time to causes.
class SlowToken {
 public:
  explicit SlowToken(const OddFacts& facts) : f_(facts), more_((facts.value - facts.usual) * 1e6) {
    TimeNs off = 0, ran = 0;
    for (const StepRecord& r : f_.steps) {
      if (r.step > f_.step_before) break;
      if (!usual_ || r.execute_ns < usual_->execute_ns) usual_ = &r;
      off += r.launch_off_cpu_ns, ran += r.execute_ns;
    }
    if (ran > 0) usually_off_ = std::min(1.0, double(off) / double(ran));
  }

  std::vector<CauseLink> chain() {
    if (!clock_jumped()) {
      if (f_.paused)
        charge(Cause::slow_reader, more_, "its client did not take what was there, so it was left out");
      if (f_.preempted) charge_preemption();
      for (const StepRecord& r : f_.steps) look_at(r);
    }
    std::vector<CauseLink> links;
    for (int i = 0; i < kAnomalyCauses; ++i)
      if (charged_[size_t(i)] >= kNoteworthy * more_)
        links.push_back(link(Cause(i), texts_[size_t(i)], std::min(1.0, charged_[size_t(i)] / more_)));
    std::stable_sort(links.begin(), links.end(),
                     [](const auto& a, const auto& b) { return a.share > b.share; });
    return links;
  }

 private:
  void charge(Cause cause, double ns, std::string text) {
    if (ns > largest_[size_t(cause)]) largest_[size_t(cause)] = ns, texts_[size_t(cause)] = std::move(text);
    charged_[size_t(cause)] += ns;
  }
  bool matters(double ns) const { return ns >= kNoteworthy * more_; }

  // Two clocks that should agree: what one of them has passed and the other has not is no time at all.
  bool clock_jumped() {
    const StepRecord *before = find(f_.steps, f_.step_before), *here = find(f_.steps, f_.step);
    if (!before || !here || before == here) return false;
    const double jump = double(f_.to - f_.from) - double(here->ended_unix_ns - before->ended_unix_ns);
    if (jump < 0.5 * more_) return false;
    charge(Cause::clock_jump, jump,
           fmt::format("the monotonic clock went {:.0f} ms further than the wall clock", jump * 1e-6));
    return true;
  }

  void charge_preemption() {
    charge(Cause::preemption, more_, "it gave up its blocks, and what stood in them was computed again");
    for (const StepRecord& r : f_.steps)
      if (r.blocks_total > 0 && r.blocks_used >= kNearlyFull * r.blocks_total && r.preempted > 0)
        return charge(Cause::kv_full, 0.5 * more_,
                      fmt::format("{} of {} blocks were in use", r.blocks_used, r.blocks_total));
  }

  void look_at(const StepRecord& r) {
    const TimeNs engine_end = r.planned_at + r.plan_ns + r.build_ns;
    const TimeNs phase = overlap(r.planned_at, r.plan_ns + r.build_ns, f_.from, f_.to);
    if (matters(double(phase))) charge_engine(r, phase);
    if (r.step <= f_.step_before || r.step > f_.step) return;
    const TimeNs ran = overlap(r.execute_at, r.execute_ns, f_.from, f_.to);
    const double usual = usual_ ? std::min(double(usual_->execute_ns), f_.usual * 1e6) : f_.usual * 1e6;
    if (matters(double(ran) - usual)) charge_device(r, double(ran) - usual);
    // Ready to be launched, and nobody took it; done, and nobody looked.
    const TimeNs unlaunched =
        overlap(engine_end, std::max<TimeNs>(0, r.execute_at - engine_end), f_.from, f_.to);
    if (matters(double(std::min(unlaunched, r.idle_ns))))
      wait_for_core("the executor's thread", double(unlaunched));
    if (r.step == f_.step) look_at_end(r);
    if (r.held_back > 0 && r.step < f_.step && ran > 0)
      charge(Cause::kv_full, double(ran), fmt::format("no block was free in step {}", r.step));
  }

  void look_at_end(const StepRecord& r) {
    const TimeNs done = r.execute_at + r.execute_ns;
    TimeNs late = std::max<TimeNs>(0, f_.to - std::max(done, f_.from));
    for (const StepRecord& other : f_.steps)
      late -= overlap(other.planned_at, other.plan_ns + other.build_ns, done, f_.to);
    if (matters(double(late))) wait_for_core("the engine's thread", double(late));
  }

  void wait_for_core(const char* who, double ns) {
    charge(Cause::run_queue, ns,
           fmt::format("{} was ready to run and got no core for {:.1f} ms", who, ns * 1e-6));
  }

  void charge_engine(const StepRecord& r, TimeNs phase) {
    const TimeNs off = std::min(phase, r.engine_off_cpu_ns), busy = phase - off;
    if (matters(double(off))) wait_for_core("the engine's thread", double(off));
    if (!matters(double(busy))) return;
    const bool allocates = r.allocations > kManyAllocations;
    charge(allocates ? Cause::allocator : Cause::engine_stall, double(busy),
           allocates
               ? fmt::format("the engine's thread made {} allocations before step {}, and took {:.1f} ms",
                             r.allocations, r.step, ms(busy))
               : fmt::format("the engine's thread took {:.1f} ms to plan and build step {}", ms(busy), r.step));
  }

  // `ns`: longer than usual. A machine that is always shared gives the usual share of it to others.
  void charge_device(const StepRecord& r, double ns) {
    const double off = std::min(ns, double(r.launch_off_cpu_ns) - usually_off_ * double(r.execute_ns));
    if (matters(off)) wait_for_core("a thread that computes", off), ns -= off;
    if (!matters(ns)) return;
    const StepRecord* u = usual_;
    const auto grown = [&](double now, double then) { return !u || now > kMoreWork * then; };
    const std::string took = fmt::format("step {} took {:.1f} ms", r.step, ms(r.execute_ns));
    const int moved = r.moved + r.host_blocks;
    if (r.graph == GraphUse::miss)
      charge(Cause::graph_miss, ns, took + " and was launched op by op instead of replayed");
    else if (r.longest_prompt > 1 && grown(r.flops, u ? u->flops : 0))
      charge(Cause::long_prompt, ns,
             fmt::format("{} with {} tokens of another prompt in it, of tenant {}{}", took, r.longest_prompt,
                         r.longest_prompt_tenant, r.longest_prompt_tenant == f_.tenant ? " as this one" : ""));
    else if (moved > 0 && grown(moved, u ? u->moved + u->host_blocks : 0))
      charge(Cause::kv_movement, ns,
             fmt::format("{} with {} blocks that changed their precision and {} to or from host memory", took,
                         r.moved, r.host_blocks));
    else if (u && grown(r.sequences, u->sequences))
      charge(Cause::batch_reshape, ns,
             fmt::format("{} of {} sequences; there were {}", took, r.sequences, u->sequences));
    else
      charge(Cause::slow_step, ns, took + "; nothing in it says why");
  }

  const OddFacts& f_;
  const double more_;                  // ns than usual
  const StepRecord* usual_ = nullptr;  // the shortest of the steps before
  double usually_off_ = 0;             // of their time, what their threads were off the processor
  std::array<double, kAnomalyCauses> charged_{}, largest_{};
  std::array<std::string, kAnomalyCauses> texts_;
};

std::vector<CauseLink> why_recomputed(const OddFacts& f) {
  if (f.preempted) {
    std::vector<CauseLink> links = {
        link(Cause::preemption, "it gave up its blocks, and what stood in them was computed again")};
    for (const StepRecord& r : f.steps)
      if (r.preempted > 0 && r.blocks_total > 0 && r.blocks_used >= kNearlyFull * r.blocks_total)
        return links.push_back(link(Cause::kv_full,
                                    fmt::format("{} of {} blocks were in use", r.blocks_used, r.blocks_total))),
               links;
    return links;
  }
  int64_t evicted = 0;
  for (const StepRecord& r : f.steps) evicted += r.evicted;
  if (evicted == 0) return {};
  return {link(Cause::kv_eviction,
               fmt::format("{} blocks of the prefix cache gave way shortly before; {:.0f} % of a "
                           "prompt is usually found there",
                           evicted, 100 * f.usual))};
}

// Nobody's fault but the logits', unless something else is seen.
std::vector<CauseLink> why_such_text(const OddFacts& f) {
  const SamplerSettings& s = f.sampler;
  if (f.broken) return {link(Cause::broken_op, "its logits were not numbers, or all the same, before")};
  if (f.unlikely) return {link(Cause::sampler, "ids were chosen though others had larger logits")};
  if (s.biased) return {link(Cause::sampler_setting, "the client's logit_bias")};
  if (s.temperature >= kHotTemperature)
    return {link(Cause::sampler_setting, fmt::format("the client's temperature of {:.2f}", s.temperature))};
  if (s.constrained) return {link(Cause::sampler_setting, "the client's grammar")};
  if (f.kind == AnomalyKind::repetition && s.temperature == 0 && !s.penalised)
    return {
        link(Cause::sampler_setting, "greedy decoding without penalties, in which small models end in loops")};
  return {link(Cause::model, "the logits say so: no setting explains it")};
}

}  // namespace

std::vector<CauseLink> explain(const OddFacts& f) {
  std::vector<CauseLink> links;
  switch (f.kind) {
    case AnomalyKind::slow_token:
      links = SlowToken(f).chain();
      break;
    case AnomalyKind::low_reuse:
      links = why_recomputed(f);
      break;
    case AnomalyKind::control_text:
    case AnomalyKind::id_jumps:
    case AnomalyKind::repetition:
    case AnomalyKind::sudden_entropy:
      links = why_such_text(f);
      break;
    case AnomalyKind::nan_logits:
      links = {link(Cause::broken_op, broken_text(find(f.steps, f.step), "no number"))};
      break;
    case AnomalyKind::flat_logits:
      links = {link(Cause::broken_op, broken_text(find(f.steps, f.step), "all the same"))};
      break;
    case AnomalyKind::failed_step:
      links = {f.sampler.constrained
                   ? link(Cause::sampler_setting, "the client's grammar could not be followed")
                   : link(Cause::failed_step, "the results of its step were no good")};
      break;
  }
  if (links.empty()) links.push_back(link(Cause::unknown, "nothing that is recorded explains it"));
  return links;
}

}  // namespace sluice
