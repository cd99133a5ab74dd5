// What holds the server back, in words. A rule needs evidence in the sample itself; where there is none, the
// answer says that nothing is evident.
#include <fmt/format.h>

#include "observe/live.h"
#include "observe/thresholds.h"

namespace sluice {

namespace {

std::string requests(int count) { return fmt::format("{} request{}", count, count == 1 ? "" : "s"); }

Verdict why_waiting(const LiveSample& s, const LiveLimits& limits) {
  const std::string wait = requests(s.waiting) + (s.waiting == 1 ? " waits: " : " wait: ");
  switch (s.stopped_by) {
    case AdmissionStop::slots:
      return {"seats",
              wait + fmt::format("all {} seats are taken. Raise engine.max_sequences if memory allows, or add "
                                 "a server.",
                                 limits.seats > 0 ? limits.seats : s.running)};
    case AdmissionStop::blocks:
      return {"kv", wait + fmt::format("the KV cache has no room for the next one ({:.0f} % in use). Raise "
                                       "engine.kv_bytes, or shorten contexts.",
                                       s.kv_total > 0 ? 100 * s.kv_used / s.kv_total : 100)};
    case AdmissionStop::budget:
      return {"budget",
              wait +
                  "prompts fill every step. Raise engine.step_tokens to take in more at once, at the cost of "
                  "steadiness."};
    case AdmissionStop::slow_client:
      return {"clients", wait + "clients do not read what is ready for them."};
    case AdmissionStop::window:
    case AdmissionStop::serial:
      return {"policy",
              wait +
                  "scheduler.policy holds them for the next batch. Under continuous they would start at "
                  "once."};
    case AdmissionStop::prefix:
      return {"prefix", wait +
                            "another request is just computing a long beginning of it, which it will then find "
                            "in the cache."};
    case AdmissionStop::none:
      break;
  }
  return {"none", requests(s.waiting) + (s.waiting == 1 ? " starts" : " start") + " with the next step."};
}

}  // namespace

Verdict what_holds_back(const LiveSample& s, const LiveLimits& limits) {
  if (s.running == 0 && s.waiting == 0) return {"idle", "Nothing to do: no request is running or waiting."};
  if (s.preemptions > 0) {
    return {"kv", fmt::format("The KV cache ran short: {} gave up its blocks and will be computed again. Raise "
                              "engine.kv_bytes, or lower engine.max_sequences.",
                              requests(int(s.preemptions)))};
  }
  if (s.waiting > 0) return why_waiting(s, limits);
  if (s.paused > 0)
    return {"clients",
            "Some clients read more slowly than their answers are made; theirs pause, others go on."};
  const double step_ms = s.split.execute_ms + s.split.gap_ms;
  if (s.split.steps > 0 && is_host_bound(s.split.gap_ms / step_ms)) {
    return {
        "host",
        fmt::format("The device stands still for {:.0f} % of the time though there is work: the host does not "
                    "keep up.",
                    100 * s.split.gap_ms / step_ms)};
  }
  const auto share = [](double value, double peak) { return peak > 0 ? value / peak : 0; };
  const double compute = share(s.flops_s, limits.peaks.flops_s),
               bandwidth = share(s.bytes_s, limits.peaks.bytes_s);
  if (is_compute_bound(compute))
    return {"compute",
            fmt::format("Arithmetic: steps run at {:.0f} % of what was measured as possible.", 100 * compute)};
  if (is_bandwidth_bound(bandwidth, compute)) {
    return {"bandwidth",
            fmt::format("Memory bandwidth: steps read at {:.0f} % of what was measured as possible. More "
                        "requests at once would cost little.",
                        100 * bandwidth)};
  }
  if (s.split.steps > 0 && s.split.sequences < 1.5 && s.running <= 1)
    return {
        "alone",
        "One request at a time: each step reads all weights for a single sequence. There is room for more."};
  return {"none", fmt::format("Nothing evident: {} running, none waiting.", requests(s.running))};
}

}  // namespace sluice
