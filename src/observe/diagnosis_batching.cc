// Rules about who computes together: batches, the queue, and the memory that decides on them.
#include <fmt/format.h>

#include <algorithm>

#include "observe/diagnosis.h"

namespace sluice {
namespace {

constexpr int kFewSteps = 20;
constexpr double kSaturatedWaitMs = 50;

// Steps that read the same weights for more sequences cost little more while memory is what bounds them. How
// much of the throughput is lost where `now` sequences run and `could` might: all but their ratio, less what
// computing for them takes.
double lost_by_batch(const Vitals& v, double now, double could) {
  if (could <= now || could <= 0) return 0;
  const double compute = v.peaks.flops_s > 0 ? std::min(1.0, v.steps.flops_s() / v.peaks.flops_s) : 0;
  return (1 - now / could) * (1 - compute);
}

// There are seats and there is a queue, and the policy keeps them apart.
std::optional<Finding> batch_policy_mismatch(const Vitals& v) {
  const StepVitals& s = v.steps;
  const double held = s.stopped(AdmissionStop::serial) + s.stopped(AdmissionStop::window);
  if (s.steps < kFewSteps || s.waiting_share < 0.3 || held < 0.5) return {};
  const double could = std::min(double(std::max(1, v.seats)), s.sequences + s.waiting);
  return Finding{"batch-policy-mismatch",
                 std::max(0.05, lost_by_batch(v, s.sequences, could) * s.waiting_share),
                 fmt::format("{:.1f} requests wait on average while steps compute {:.1f} sequences ({:.0f} % "
                             "of the steps a single one) "
                             "and there are {} seats: scheduler.policy holds them back. Under continuous they "
                             "would start at once.",
                             s.waiting, s.sequences, 100 * s.alone_share, v.seats),
                 {{"steps_of_one_sequence_share", s.alone_share},
                  {"sequences_per_step", s.sequences},
                  {"waiting", s.waiting},
                  {"seats", double(v.seats)},
                  {"held_by_policy_share", held}},
                 "scheduler.policy: continuous"};
}

std::optional<Finding> queue_saturation(const Vitals& v) {
  const StepVitals& s = v.steps;
  if (v.queued == 0 || v.queue_p95_ms <= kSaturatedWaitMs || s.waiting_share < 0.3) return {};
  const double seats = s.stopped(AdmissionStop::slots), budget = s.stopped(AdmissionStop::budget);
  if (seats + budget < 0.5) return {};  // other rules know why
  const bool by_seats = seats >= budget;
  const double could = s.sequences + s.waiting;
  return Finding{
      "queue-saturation",
      by_seats ? std::max(0.03, lost_by_batch(v, s.sequences, could) * s.waiting_share * 0.5) : 0.03,
      fmt::format(
          "Requests wait {:.0f} ms (median {:.0f}) for {}. {}", v.queue_p95_ms, v.queue_p50_ms,
          by_seats ? fmt::format("one of {} seats", v.seats) : "room in steps that prompts fill",
          by_seats
              ? "Raise engine.max_sequences where memory allows; else there is more load than this server "
                "can take: add one, or limit what is let in."
              : "More prompt tokens arrive than are computed: raise engine.step_tokens, share prefixes, or "
                "add a server."),
      {{"wait_ms_p95", v.queue_p95_ms},
       {"wait_ms_p50", v.queue_p50_ms},
       {"waiting", s.waiting},
       {"running", s.running},
       {"seats", double(v.seats)},
       {"rejected_per_s", v.rejected_s}},
      by_seats ? "engine.max_sequences" : "engine.step_tokens"};
}

std::optional<Finding> kv_preallocation_waste(const Vitals& v) {
  const KvVitals& kv = v.kv;
  const double taken = kv.used + kv.reserved + kv.wasted, reserved = taken > 0 ? kv.reserved / taken : 0;
  const double blocked = v.steps.waiting_share * v.steps.stopped(AdmissionStop::blocks);
  // Whole contexts are mostly unused; paged blocks waste half a block a request, which is much of short ones
  // only.
  if (reserved < 0.5 || kv.reserved < 0.2 * kv.pool() || v.steps.steps < kFewSteps) return {};
  const double could = v.steps.sequences + v.steps.waiting;
  return Finding{
      "kv-preallocation-waste",
      std::max(0.02, lost_by_batch(v, v.steps.sequences, std::min(could, v.steps.sequences / (1 - reserved))) *
                         blocked),
      fmt::format(
          "{:.0f} % of the memory that running requests hold has no token in it: it was reserved for contexts "
          "that they may never reach{}. Paged blocks hold what exists.",
          100 * reserved, blocked > 0.1 ? ", and others wait for memory" : ""),
      {{"reserved_share", reserved},
       {"reserved_bytes", kv.reserved},
       {"used_bytes", kv.used},
       {"pool_bytes", kv.pool()},
       {"steps_blocked_share", blocked}},
      "kv.allocation: paged"};
}

std::optional<Finding> kv_fragmentation(const Vitals& v) {
  const KvVitals& kv = v.kv;
  const double taken = kv.used + kv.reserved + kv.wasted, wasted = taken > 0 ? kv.wasted / taken : 0;
  const double blocked = v.steps.waiting_share * v.steps.stopped(AdmissionStop::blocks);
  if (wasted < 0.15 || kv.wasted < 0.05 * kv.pool()) return {};
  return Finding{
      "kv-fragmentation",
      std::max(0.02, wasted * blocked),
      fmt::format(
          "{:.0f} % of the memory that running requests hold are gaps between blocks of small precisions.",
          100 * wasted),
      {{"wasted_share", wasted},
       {"wasted_bytes", kv.wasted},
       {"used_bytes", kv.used},
       {"steps_blocked_share", blocked}},
      "kv.precision: one precision instead of tiered"};
}

std::optional<Finding> kv_too_small(const Vitals& v) {
  const double blocked = v.steps.waiting_share * v.steps.stopped(AdmissionStop::blocks);
  const KvVitals& kv = v.kv;
  const double taken = kv.used + kv.reserved + kv.wasted;
  if (blocked < 0.3 || v.steps.steps < kFewSteps || (taken > 0 && kv.used < 0.8 * taken)) return {};
  const double could = v.steps.sequences + v.steps.waiting;
  return Finding{
      "kv-pool-too-small",
      std::max(0.03, lost_by_batch(v, v.steps.sequences, std::min(double(v.seats), could)) * blocked * 0.5),
      fmt::format("The next request waits for memory in {:.0f} % of the steps, and what is taken of the pool's "
                  "{:.3g} GB holds tokens. "
                  "A larger pool or a smaller kv.precision holds more.",
                  100 * blocked, kv.pool() * 1e-9),
      {{"steps_blocked_share", blocked},
       {"pool_bytes", kv.pool()},
       {"used_bytes", kv.used},
       {"waiting", v.steps.waiting},
       {"running", v.steps.running}},
      "engine.kv_bytes, kv.precision"};
}

std::optional<Finding> prefix_thrash(const Vitals& v) {
  const KvVitals& kv = v.kv;
  if (kv.looked_up_tokens <= 0 || kv.evicted_blocks <= 0) return {};
  const double again = kv.missed_evicted_tokens / kv.looked_up_tokens;
  if (again < 0.1) return {};
  const double computed = std::max(1.0, kv.computed_tokens);
  return Finding{
      "prefix-thrash",
      std::min(0.9, kv.missed_evicted_tokens / computed),
      fmt::format(
          "{:.0f} % of the prompt tokens that are looked up in the prefix cache had been there and were "
          "evicted "
          "shortly before: what requests share does not fit beside what they hold. A larger pool, a smaller "
          "kv.precision or a host-memory tier keeps it.",
          100 * again),
      {{"missed_evicted_share", again},
       {"hit_share", kv.found_tokens / kv.looked_up_tokens},
       {"evicted_blocks", kv.evicted_blocks},
       {"missed_evicted_tokens", kv.missed_evicted_tokens},
       {"computed_tokens", kv.computed_tokens}},
      "engine.kv_bytes, kv.host_bytes"};
}

std::optional<Finding> preemption_thrash(const Vitals& v) {
  const KvVitals& kv = v.kv;
  if (kv.preemptions < 3 || kv.computed_tokens <= 0) return {};
  const double again = kv.recomputed_tokens / kv.computed_tokens;
  if (again < 0.03) return {};
  return Finding{
      "preemption-thrash",
      again,
      fmt::format(
          "{:.0f} times a request gave up its memory to an older one; {:.0f} % of all computed tokens had been "
          "computed before. Fewer requests at once, or a larger pool.",
          kv.preemptions, 100 * again),
      {{"preemptions", kv.preemptions},
       {"recomputed_share", again},
       {"recomputed_tokens", kv.recomputed_tokens},
       {"pool_bytes", kv.pool()},
       {"running", v.steps.running}},
      "engine.max_sequences, engine.kv_bytes"};
}

// Long prompts in the steps of those that generate: throughput is not lost, smoothness is.
std::optional<Finding> long_prompt_interference(const Vitals& v) {
  const StepVitals& s = v.steps;
  if (s.mixed < 5 || s.pure_decodes < 5 || s.mixed_share < 0.2 || s.mixed_ms < 3 * s.decode_ms) return {};
  return Finding{
      "long-prompt-interference",
      0.5 * s.mixed_share * (1 - s.decode_ms / s.mixed_ms),
      fmt::format(
          "Steps that compute prompts beside running answers take {:.1f} ms, those without {:.1f} ms, and make "
          "up "
          "{:.0f} % of the time: every token of a running answer waits for them. Fewer prompt tokens a step "
          "keep answers smooth, at the cost of later first tokens.",
          s.mixed_ms, s.decode_ms, 100 * s.mixed_share),
      {{"mixed_step_ms", s.mixed_ms},
       {"decode_step_ms", s.decode_ms},
       {"mixed_time_share", s.mixed_share},
       {"prompt_tokens_per_s", v.prompt_s}},
      "engine.mixed_prompt_tokens, scheduler.target_itl_ms"};
}

constexpr Rule kRules[] = {
    batch_policy_mismatch, queue_saturation, kv_preallocation_waste, kv_fragmentation,
    kv_too_small,          prefix_thrash,    preemption_thrash,      long_prompt_interference};

}  // namespace

std::span<const Rule> batching_rules() { return kRules; }

}  // namespace sluice
