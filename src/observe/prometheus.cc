#include "observe/prometheus.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "observe/exemplars.h"

namespace sluice {

namespace {

// Which of the two formats.
struct Form {
  bool open_metrics = false;
  const Exemplars* exemplars = nullptr;
};

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

void append_bound(std::string& out, double bound, const Form& form) {
  const size_t from = out.size();
  append_number(out, bound);
  if (form.open_metrics && out.find_first_of(".e", from) == std::string::npos) out += ".0";
}

// Behind a bucket's line: a trace whose request fell there.
void append_exemplar(std::string& out, const Histogram& h, size_t bucket, const Form& form) {
  if (form.exemplars == nullptr) return;
  const auto exemplar = form.exemplars->of(h, bucket);
  if (!exemplar) return;
  out.back() = ' ';  // the line's end
  out += "# {trace_id=\"" + hex(exemplar->trace) + "\"} ";
  append_number(out, exemplar->value);
  out += ' ';
  out += fmt::format("{:.3f}\n", exemplar->unix_seconds);
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
void append_histogram(std::string& out, std::string_view name, const std::string& labels, const Histogram& h,
                      const Form& form) {
  uint64_t count = 0;
  const auto bounds = h.bounds();
  for (size_t i = 0; i < bounds.size(); ++i) {
    count += h.bucket(int(i));
    std::string le = "le=\"";
    append_bound(le, bounds[i], form);
    append_series(out, name, "_bucket", joined(labels, le + "\""), count);
    append_exemplar(out, h, i, form);
  }
  count += h.bucket(int(bounds.size()));
  append_series(out, name, "_bucket", joined(labels, "le=\"+Inf\""), count);
  append_exemplar(out, h, bounds.size(), form);
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

// Of a second engine. Under the names of a program that has one engine each family has the first one's series
// alone: the Gateway API's endpoint picker takes one series of a family for the server's load, in some versions
// the last.
bool is_of_pool(const Meter& m) { return m.labels.find("pool=\"") != std::string::npos; }

void append_family(std::string& out, const std::vector<Meter>& meters, const Meter& head, const MeterAlias& as,
                   const std::string& extra_labels, const Form& form) {
  const std::string_view name = as.alias;
  std::string_view family = name;
  if (form.open_metrics && head.kind == Meter::Kind::counter && family.ends_with("_total"))
    family.remove_suffix(std::string_view("_total").size());
  out += "# HELP ";
  out += family;
  out += ' ';
  append_escaped(out, head.help, false);
  out += "\n# TYPE ";
  out += family;
  out += ' ';
  out += type_name(head.kind);
  out += '\n';
  for (const Meter& m : meters) {
    if (m.name != head.name || m.kind != head.kind) continue;
    if (name != m.name && is_of_pool(m)) continue;
    const std::string labels = joined(extra_labels, as.labels ? as.labels(m.labels) : m.labels);
    if (m.counter != nullptr && m.unit == 1) append_series(out, name, "", labels, m.counter->value());
    if (m.counter != nullptr && m.unit != 1)
      append_series(out, name, "", labels, double(m.counter->value()) * m.unit);
    if (m.gauge != nullptr) append_series(out, name, "", labels, m.gauge->value());
    if (m.histogram != nullptr) append_histogram(out, name, labels, *m.histogram, form);
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

namespace {

std::string text_of(const std::vector<Meter>& meters, std::span<const MeterAlias> aliases,
                    const std::string& alias_labels, const Form& form) {
  std::string out;
  const auto first_of = [&](std::string_view name) -> const Meter* {
    for (const Meter& m : meters) {
      if (m.name == name) return &m;
    }
    return nullptr;
  };
  for (const Meter& m : meters) {
    if (first_of(m.name) == &m) append_family(out, meters, m, {m.name, m.name}, "", form);
  }
  for (const MeterAlias& alias : aliases) {
    if (const Meter* m = first_of(alias.own)) append_family(out, meters, *m, alias, alias_labels, form);
  }
  return out;
}

}  // namespace

std::string prometheus_text(const std::vector<Meter>& meters, std::span<const MeterAlias> aliases,
                            const std::string& alias_labels) {
  return text_of(meters, aliases, alias_labels, {});
}

std::string open_metrics_text(const std::vector<Meter>& meters, std::span<const MeterAlias> aliases,
                              const std::string& alias_labels, const Exemplars* exemplars) {
  return text_of(meters, aliases, alias_labels, {true, exemplars}) + "# EOF\n";
}

bool wants_open_metrics(std::string_view accept) {
  return accept.find("application/openmetrics-text") != std::string_view::npos;
}

}  // namespace sluice
