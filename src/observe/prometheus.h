// Meters as Prometheus' text format 0.0.4 and as OpenMetrics 1.0. Reads meters, changes nothing; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/meter.h"

namespace sluice {

inline constexpr std::string_view kPrometheusContentType = "text/plain; version=0.0.4; charset=utf-8";
inline constexpr std::string_view kOpenMetricsContentType =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

class Exemplars;

// A family under another program's name, with the same values. Aliases may hold colons, as vLLM's do.
struct MeterAlias {
  std::string_view own;
  std::string_view alias;
  std::string (*labels)(const std::string& own) = nullptr;  // in the other program's words; null: the same
};

// vLLM's names for what we count alike: what dashboards for it and the Gateway API's endpoint picker read.
std::span<const MeterAlias> vllm_aliases();

// One block per family: HELP, TYPE, then every series of it. Gauges that are no number are written as 0.
// `alias_labels` are put before an alias' own labels (`model_name="m"`); make them with prometheus_label.
std::string prometheus_text(const std::vector<Meter>& meters, std::span<const MeterAlias> aliases = {},
                            const std::string& alias_labels = {});

// The same as OpenMetrics: counters are families without `_total`, bounds are written as floats, buckets have
// exemplars (null: none), and the end is marked.
std::string open_metrics_text(const std::vector<Meter>& meters, std::span<const MeterAlias> aliases,
                              const std::string& alias_labels, const Exemplars* exemplars);

// Whether an Accept header lists OpenMetrics, as Prometheus' does.
bool wants_open_metrics(std::string_view accept);

// name="value", escaped.
std::string prometheus_label(std::string_view name, std::string_view value);

}  // namespace sluice
