// Rules about what surrounds the steps: the door, the clients, the cores.
#include <fmt/format.h>

#include <algorithm>

#include "observe/diagnosis.h"

namespace sluice {
namespace {

constexpr double kSchedulingDelayMs = 15;
constexpr int kFewRequests = 5;

std::optional<Finding> door_bound(const Vitals& v) {
  const Attribution& all = v.attribution.all;
  if (all.requests < kFewRequests) return {};
  const double door = all.share(Span::read) + all.share(Span::parse) + all.share(Span::tokenize),
               text = all.share(Span::parse) + all.share(Span::tokenize);
  if (text < 0.2) return {};
  return Finding{"door-bound",
                 text,
                 fmt::format("{:.0f} % of the requests' time goes before the engine sees them: {:.1f} ms each "
                             "to parse JSON, render "
                             "templates and tokenize, the wait for a text thread included.",
                             100 * text, all.mean_ms(Span::parse) + all.mean_ms(Span::tokenize)),
                 {{"parse_ms", all.mean_ms(Span::parse)},
                  {"tokenize_ms", all.mean_ms(Span::tokenize)},
                  {"before_engine_share", door},
                  {"requests", double(all.requests)}},
                 "server.text_threads"};
}

std::optional<Finding> slow_readers(const Vitals& v) {
  const Attribution& all = v.attribution.all;
  const double waiting = all.share(Span::paused) + all.share(Span::write);
  if (v.paused_share < 0.05 && (all.requests < kFewRequests || waiting < 0.2)) return {};
  return Finding{"slow-readers",
                 // Their seats and blocks serve nobody meanwhile.
                 std::max(v.paused_share, 0.5 * waiting),
                 fmt::format("Clients read more slowly than their answers are made: {:.0f} % of the sequences' "
                             "steps were left out for "
                             "them, {:.0f} % of the requests' time is waiting for their sockets. Others go on; "
                             "their seats are held.",
                             100 * v.paused_share, 100 * waiting),
                 {{"paused_share", v.paused_share},
                  {"paused_ms", all.mean_ms(Span::paused)},
                  {"write_ms", all.mean_ms(Span::write)},
                  {"requests", double(all.requests)}},
                 "server.write_timeout_ms"};
}

std::optional<Finding> cpu_scheduling_delay(const Vitals& v) {
  const HostVitals& h = v.host;
  // 15 ms in each second, or at a time; where nothing ran, nothing was lost.
  if (v.steps.steps == 0 || h.delay_share < kSchedulingDelayMs / 1e3 ||
      (h.delay_share < 0.05 && h.delay_ms_turn < kSchedulingDelayMs))
    return {};
  return Finding{"cpu-scheduling-delay",
                 std::min(0.9, h.delay_share),
                 fmt::format("{} is ready to run but waits for a core for {:.0f} ms in each second: other work "
                             "runs on the cores that "
                             "steps need (load {:.1f} on {:.0f} cores).",
                             h.delayed_thread, 1e3 * h.delay_share, h.load, h.usable_cpus),
                 {{"delay_ms_per_s", 1e3 * h.delay_share},
                  {"delay_ms_per_turn", h.delay_ms_turn},
                  {"load", h.load},
                  {"usable_cpus", h.usable_cpus},
                  {"process_cpu_share", h.cpu_share}},
                 "cores of its own for the server (cpuset, nice), or fewer cpu.threads"};
}

std::optional<Finding> oversubscribed_cores(const Vitals& v) {
  const HostVitals& h = v.host;
  if (h.compute_cores <= 0) return {};
  const bool too_many = !v.card && h.compute_threads > h.compute_cores + 0.5;
  if (!too_many && h.throttled_share < 0.05) return {};
  const double lost = std::max(h.throttled_share, too_many ? 1 - h.compute_cores / h.compute_threads : 0);
  return Finding{
      "oversubscribed-cores",
      std::max(0.05, 0.5 * lost + 0.5 * h.delay_share),
      too_many ? fmt::format("{} threads compute each step on {:.1f} cores: each op waits for the one that "
                             "has no core.",
                             h.compute_threads, h.compute_cores)
               : fmt::format("The container's CPU quota held the server back for {:.0f} % of the time.",
                             100 * h.throttled_share),
      {{"compute_threads", double(h.compute_threads)},
       {"compute_cores", h.compute_cores},
       {"throttled_share", h.throttled_share},
       {"delay_share", h.delay_share}},
      "cpu.threads"};
}

std::optional<Finding> numa_remote(const Vitals& v) {
  const HostVitals& h = v.host;
  if (h.nodes < 2 || h.remote_share < 0.3) return {};
  return Finding{
      "numa-remote",
      0.4 * h.remote_share,
      fmt::format("{:.0f} % of the server's memory lies on another node than the threads that read it.",
                  100 * h.remote_share),
      {{"remote_share", h.remote_share}, {"nodes", double(h.nodes)}},
      "machine.numa: N, one server a node"};
}

constexpr Rule kRules[] = {door_bound, slow_readers, cpu_scheduling_delay, oversubscribed_cores, numa_remote};

}  // namespace

std::span<const Rule> host_rules() { return kRules; }

}  // namespace sluice
