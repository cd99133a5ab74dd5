#include "observe/prometheus.h"

#include <charconv>
#include <cmath>

namespace sluice {

namespace {

void append_number(std::string& out, double value) {
  if (!std::isfinite(value)) value = 0;
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out.append(text, size_t(end - text));
}

void append_number(std::string& out, uint64_t value) { out += std::to_string(value); }

std::string joined(const std::string& a, const std::string& b) {
  return a.empty() ? b : b.empty() ? a : a + "," + b;
}

template <typename T>
void append_series(std::string& out, std::string_view name, std::string_view suffix, const std::string& labels,
                   T value) {
  out += name;
  out += suffix;
  if (!labels.empty()) {
    out += '{';
    out += labels;
    out += '}';
  }
  out += ' ';
  append_number(out, value);
  out += '\n';
}

// The count is the sum of the buckets that were read, so that a scrape agrees with itself while others write.
void append_histogram(std::string& out, std::string_view name, const std::string& labels, const Histogram& h) {
  uint64_t count = 0;
  const auto bounds = h.bounds();
  for (size_t i = 0; i < bounds.size(); ++i) {
    count += h.bucket(int(i));
    std::string le = "le=\"";
    append_number(le, bounds[i]);
    append_series(out, name, "_bucket", joined(labels, le + "\""), count);
  }
  count += h.bucket(int(bounds.size()));
  append_series(out, name, "_bucket", joined(labels, "le=\"+Inf\""), count);
  append_series(out, name, "_sum", labels, h.sum());
  append_series(out, name, "_count", labels, count);
}

const char* type_name(Meter::Kind kind) {
  switch (kind) {
    case Meter::Kind::counter:
      return "counter";
    case Meter::Kind::gauge:
      return "gauge";
    case Meter::Kind::histogram:
      return "histogram";
  }
  return "untyped";
}

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && quotes)
      out += "\\\"";
    else
      out += c;
  }
}

void append_family(std::string& out, const std::vector<Meter>& meters, const Meter& head, const MeterAlias& as,
                   const std::string& extra_labels) {
  const std::string_view name = as.alias;
  out += "# HELP ";
  out += name;
  out += ' ';
  append_escaped(out, head.help, false);
  out += "\n# TYPE ";
  out += name;
  out += ' ';
  out += type_name(head.kind);
  out += '\n';
  for (const Meter& m : meters) {
    if (m.name != head.name || m.kind != head.kind) continue;
    const std::string labels = joined(extra_labels, as.labels ? as.labels(m.labels) : m.labels);
    if (m.counter != nullptr && m.unit == 1) append_series(out, name, "", labels, m.counter->value());
    if (m.counter != nullptr && m.unit != 1)
      append_series(out, name, "", labels, double(m.counter->value()) * m.unit);
    if (m.gauge != nullptr) append_series(out, name, "", labels, m.gauge->value());
    if (m.histogram != nullptr) append_histogram(out, name, labels, *m.histogram);
  }
}

// vLLM's finished_reason: stop, length, abort, error. Our deadline stays a word of its own: two series of one
// name and labels would be an error.
std::string vllm_finished(const std::string& own) {
  if (own == "reason=\"cancelled\"") return "finished_reason=\"abort\"";
  if (own == "reason=\"failed\"") return "finished_reason=\"error\"";
  return "finished_" + own;
}

constexpr MeterAlias kVllm[] = {
    {"sluice_requests_running", "vllm:num_requests_running"},
    {"sluice_requests_waiting", "vllm:num_requests_waiting"},
    {"sluice_kv_usage_ratio", "vllm:kv_cache_usage_perc"},
    {"sluice_kv_usage_ratio", "vllm:gpu_cache_usage_perc"},
    {"sluice_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"sluice_generated_tokens_total", "vllm:generation_tokens_total"},
    {"sluice_preemptions_total", "vllm:num_preemptions_total"},
    {"sluice_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"sluice_inter_token_seconds", "vllm:time_per_output_token_seconds"},
    {"sluice_request_seconds", "vllm:e2e_request_latency_seconds"},
    {"sluice_request_queue_seconds", "vllm:request_queue_time_seconds"},
    {"sluice_request_prefill_seconds", "vllm:request_prefill_time_seconds"},
    {"sluice_request_decode_seconds", "vllm:request_decode_time_seconds"},
    {"sluice_request_inference_seconds", "vllm:request_inference_time_seconds"},
    {"sluice_inter_token_seconds", "vllm:inter_token_latency_seconds"},
    {"sluice_requests_finished_total", "vllm:request_success_total", vllm_finished},
    {"sluice_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"sluice_request_generated_tokens", "vllm:request_generation_tokens"},
    {"sluice_step_tokens", "vllm:iteration_tokens_total"},
    {"sluice_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
    {"sluice_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
};

}  // namespace

std::span<const MeterAlias> vllm_aliases() { return kVllm; }

std::string prometheus_label(std::string_view name, std::string_view value) {
  std::string out(name);
  out += "=\"";
  append_escaped(out, value, true);
  out += '"';
  return out;
}

std::string prometheus_text(const std::vector<Meter>& meters, std::span<const MeterAlias> aliases,
                            const std::string& alias_labels) {
  std::string out;
  const auto first_of = [&](std::string_view name) -> const Meter* {
    for (const Meter& m : meters) {
      if (m.name == name) return &m;
    }
    return nullptr;
  };
  for (const Meter& m : meters) {
    if (first_of(m.name) == &m) append_family(out, meters, m, {m.name, m.name}, "");
  }
  for (const MeterAlias& alias : aliases) {
    if (const Meter* m = first_of(alias.own)) append_family(out, meters, *m, alias, alias_labels);
  }
  return out;
}

}  // namespace sluice
