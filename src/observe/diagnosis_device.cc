// Rules about the device: what bounds its steps, and what keeps it from its best.
#include <fmt/format.h>

#include <algorithm>

#include "observe/diagnosis.h"
#include "observe/thresholds.h"

namespace sluice {
namespace {

constexpr double kNothingWasted =
    0.01;  // what a bound may gain without another model or machine: last in the ranking
constexpr double kFewSteps = 20;

double share(double value, double peak) { return peak > 0 ? value / peak : 0; }

std::optional<Finding> memory_bandwidth_bound(const Vitals& v) {
  const double bandwidth = share(v.steps.bytes_s(), v.peaks.bytes_s),
               compute = share(v.steps.flops_s(), v.peaks.flops_s);
  if (v.steps.steps < kFewSteps || !is_bandwidth_bound(bandwidth, compute)) return {};
  const double weights = v.steps.weight_bytes / (v.steps.weight_bytes + v.steps.kv_bytes);
  const bool kv = weights < 0.5;
  return Finding{"memory-bandwidth-bound",
                 kNothingWasted,
                 fmt::format("Steps read memory at {:.0f} % of what this machine can, and compute at {:.0f} %. "
                             "{:.0f} % of the bytes are "
                             "{}: {} reads fewer. Requests beside these cost little.",
                             100 * bandwidth, 100 * compute, 100 * (kv ? 1 - weights : weights),
                             kv ? "keys and values" : "weights",
                             kv ? "a smaller kv.precision" : "a model with 4-bit or 8-bit weights"),
                 {{"bandwidth_share", bandwidth},
                  {"compute_share", compute},
                  {"bytes_per_s", v.steps.bytes_s()},
                  {"weight_bytes_share", weights},
                  {"sequences_per_step", v.steps.sequences}},
                 kv ? "kv.precision" : "the model's weights: sluice quantize"};
}

// What a card can compute falls with its clock; its peak was measured at the highest.
double clock_share(const Vitals& v) {
  double least = 1;
  for (const CardReading& c : v.cards)
    if (c.utilisation > 0.5 && c.most_clock_mhz > 0) least = std::min(least, c.clock_mhz / c.most_clock_mhz);
  return least > 0 ? least : 1;
}

std::optional<Finding> compute_bound(const Vitals& v) {
  const double bandwidth = share(v.steps.bytes_s(), v.peaks.bytes_s), clock = clock_share(v),
               compute = share(v.steps.flops_s(), v.peaks.flops_s * clock);
  if (v.steps.steps == 0 || !is_compute_bound(compute)) return {};
  return Finding{
      "compute-bound",
      kNothingWasted,
      fmt::format(
          "Steps compute at {:.0f} % of what this machine can at its clock (and read at {:.0f} %). Fewer "
          "prompt tokens "
          "(prefix cache, shorter prompts), 8-bit arithmetic or more cores help; larger batches do not.",
          100 * std::min(1.0, compute), 100 * bandwidth),
      {{"compute_share", compute},
       {"clock_share", clock},
       {"bandwidth_share", bandwidth},
       {"operations_per_s", v.steps.flops_s()},
       {"tokens_per_step", v.steps.tokens}},
      "kv.prefix_cache"};
}

std::optional<Finding> host_bound(const Vitals& v) {
  if (v.steps.steps < kFewSteps || !is_host_bound(v.steps.gap_share())) return {};
  return Finding{
      "host-bound",
      v.steps.gap_share(),
      fmt::format(
          "The device stands still for {:.0f} % of the time though there is work: the host prepares steps "
          "more slowly than they run. Give the server cores of its own{}.",
          100 * v.steps.gap_share(), v.card ? ", and keep steps recorded (engine.graphs)" : ""),
      {{"gap_share", v.steps.gap_share()},
       {"gap_ms_per_step", 1e3 * v.steps.gap_s / v.steps.steps},
       {"execute_ms_per_step", 1e3 * v.steps.execute_s / v.steps.steps},
       {"launch_ms_per_step", 1e3 * v.steps.launch_s / v.steps.steps}},
      v.card ? "engine.graphs" : "machine.engine_cpu"};  // on a CPU there is nothing to record
}

// Launched op by op, a small step takes as long as its launches; what a record would save is what the host
// spends on launching them.
std::optional<Finding> graph_misses(const Vitals& v) {
  const StepVitals& s = v.steps;
  const int all = s.graph_hits + s.graph_misses + s.graph_none, missed = s.graph_misses + s.graph_none;
  if (!v.card || all < kFewSteps || missed < 0.05 * all) return {};
  const double busy = s.execute_s + s.gap_s, launching = busy > 0 ? std::min(1.0, s.launch_s / busy) : 0;
  return Finding{
      "graph-misses",
      std::max(0.02, launching * missed / all),
      fmt::format("{:.0f} % of the steps that could be replayed as one launch were launched op by op. They are "
                  "recorded with engine.graphs, at start.",
                  100.0 * missed / all),
      {{"missed_share", double(missed) / all},
       {"recorded_meanwhile", double(s.graph_misses)},
       {"launch_share", launching}},
      "engine.graphs"};
}

std::optional<Finding> clock_throttle(const Vitals& v) {
  const CardReading* worst = nullptr;
  for (const CardReading& c : v.cards) {
    if (c.utilisation < 0.5 || c.most_clock_mhz <= 0 || c.clock_mhz > 0.92 * c.most_clock_mhz) continue;
    if (worst == nullptr || c.clock_mhz / c.most_clock_mhz < worst->clock_mhz / worst->most_clock_mhz)
      worst = &c;
  }
  if (worst == nullptr) return {};
  const double lost = 1 - worst->clock_mhz / worst->most_clock_mhz;
  return Finding{"clock-throttle",
                 // Memory's clock does not fall with the multiprocessors': bandwidth-bound steps lose little.
                 lost * std::clamp(share(v.steps.flops_s(), v.peaks.flops_s), 0.1, 1.0),
                 fmt::format("{} runs at {:.0f} of {:.0f} MHz{} ({:.0f} of {:.0f} W, {:.0f} °C).", worst->name,
                             worst->clock_mhz, worst->most_clock_mhz,
                             worst->throttled_by.empty() ? "" : ", held by its " + worst->throttled_by,
                             worst->power_w, worst->power_limit_w, worst->temperature_c),
                 {{"clock_mhz", worst->clock_mhz},
                  {"most_clock_mhz", worst->most_clock_mhz},
                  {"power_w", worst->power_w},
                  {"power_limit_w", worst->power_limit_w},
                  {"temperature_c", worst->temperature_c}},
                 "the card's clocks and power limit (nvidia-smi -q -d CLOCK,POWER), and its cooling"};
}

std::optional<Finding> pcie_bound(const Vitals& v) {
  for (const CardReading& c : v.cards) {
    const double busy = share(c.pcie_bytes_s, c.pcie_peak_bytes_s);
    if (busy < 0.5) continue;
    return Finding{
        "pcie-bound",
        0.5 * busy,
        fmt::format("{} moves {:.1f} GB/s over PCIe, {:.0f} % of what its link can: blocks go to and from host "
                    "memory faster than it pays. A larger pool keeps them on the card.",
                    c.name, c.pcie_bytes_s * 1e-9, 100 * busy),
        {{"pcie_bytes_per_s", c.pcie_bytes_s},
         {"pcie_share", busy},
         {"restored_bytes_per_s", v.window_s > 0 ? v.kv.restored_bytes / v.window_s : 0}},
        "kv.host_bytes"};
  }
  return {};
}

std::optional<Finding> gpu_imbalance(const Vitals& v) {
  if (v.cards.size() < 2) return {};
  const auto [least, most] =
      std::minmax_element(v.cards.begin(), v.cards.end(),
                          [](const auto& a, const auto& b) { return a.utilisation < b.utilisation; });
  if (most->utilisation < 0.5 || most->utilisation - least->utilisation < 0.25) return {};
  double mean = 0;
  for (const CardReading& c : v.cards) mean += c.utilisation / double(v.cards.size());
  return Finding{"gpu-imbalance",
                 1 - mean / most->utilisation,
                 fmt::format("{} works {:.0f} % of the time, {} {:.0f} %: the work is not spread evenly.",
                             most->name, 100 * most->utilisation, least->name, 100 * least->utilisation),
                 {{"utilisation_most", most->utilisation},
                  {"utilisation_least", least->utilisation},
                  {"cards", double(v.cards.size())}},
                 "how requests are spread over the servers of these cards"};
}

constexpr Rule kRules[] = {memory_bandwidth_bound, compute_bound, host_bound,   graph_misses,
                           clock_throttle,         pcie_bound,    gpu_imbalance};

}  // namespace

std::span<const Rule> device_rules() { return kRules; }

}  // namespace sluice
