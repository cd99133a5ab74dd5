#include "cli/otel_environment.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "observe/otlp_endpoint.h"

namespace sluice::cli {
namespace {

using Read = const char* (*)(const char*);

constexpr int kMostMs = 3'600'000;  // as of the keys of sluice.yaml

Error wrong(const char* name, const std::string& message) {
  return {ErrorCode::kInvalidArgument, std::string(name) + ": " + message};
}

// Empty counts as unset, as OpenTelemetry has it.
std::optional<std::string> value_of(Read read, const char* name) {
  const char* value = read(name);
  if (value == nullptr || *value == 0) return std::nullopt;
  return value;
}

Status take_number(Read read, const char* name, int most, int& out) {
  const auto text = value_of(read, name);
  if (!text) return {};
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 1 || value > most)
    return wrong(name, "expected an integer from 1 to " + std::to_string(most) + ", got '" + *text + "'");
  out = value;
  return {};
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16).ptr == &text[i + 1] + 2) {
      out += char(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// "a=b,c=d", blanks around each left out.
void take_pairs(Read read, const char* name, std::vector<std::string>& out) {
  const auto text = value_of(read, name);
  if (!text) return;
  for (size_t at = 0; at <= text->size();) {
    const size_t end = std::min(text->find(',', at), text->size());
    std::string_view pair = std::string_view(*text).substr(at, end - at);
    while (pair.starts_with(' ')) pair.remove_prefix(1);
    while (pair.ends_with(' ')) pair.remove_suffix(1);
    if (!pair.empty()) out.push_back(percent_decoded(pair));
    at = end + 1;
  }
}

// Of the two, the one for traces counts. What is not spoken is refused by the tracer, if there is an endpoint.
void take_protocol(TracingSettings& tracing, Read read) {
  for (const char* name : {"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"})
    if (const auto protocol = value_of(read, name)) tracing.protocol = *protocol;
}

void take_endpoint(TracingSettings& tracing, Read read) {
  if (auto base = value_of(read, "OTEL_EXPORTER_OTLP_ENDPOINT")) {
    while (base->ends_with('/')) base->pop_back();
    tracing.endpoint = *base + kTracesPath;
  }
  if (auto own = value_of(read, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) tracing.endpoint = *own;
  const auto exporter = value_of(read, "OTEL_TRACES_EXPORTER");
  const auto disabled = value_of(read, "OTEL_SDK_DISABLED");
  if (exporter == "none" || (disabled && strcasecmp(disabled->c_str(), "true") == 0)) tracing.endpoint.clear();
}

Status take_sampler(TracingSettings& tracing, Read read) {
  const auto sampler = value_of(read, "OTEL_TRACES_SAMPLER");
  if (!sampler) return {};
  // Parents decide with all of them.
  const std::string_view name = sampler->starts_with("parentbased_")
                                    ? std::string_view(*sampler).substr(std::strlen("parentbased_"))
                                    : std::string_view(*sampler);
  if (name == "always_on") {
    tracing.sample_ratio = 1;
  } else if (name == "always_off") {
    tracing.sample_ratio = 0;
  } else if (name == "traceidratio") {
    const std::string text = value_of(read, "OTEL_TRACES_SAMPLER_ARG").value_or("1");
    double ratio = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ratio);
    if (error != std::errc() || end != text.data() + text.size() || !(ratio >= 0 && ratio <= 1))
      return wrong("OTEL_TRACES_SAMPLER_ARG", "expected a number from 0 to 1, got '" + text + "'");
    tracing.sample_ratio = ratio;
  } else {
    return wrong("OTEL_TRACES_SAMPLER",
                 "expected always_on, always_off or traceidratio, or one of them behind parentbased_, got '" +
                     *sampler + "'");
  }
  return {};
}

}  // namespace

Status take_otel_environment(TracingSettings& tracing, Read read) {
  take_protocol(tracing, read);
  take_endpoint(tracing, read);
  if (auto name = value_of(read, "OTEL_SERVICE_NAME")) tracing.service_name = *name;
  take_pairs(read, "OTEL_RESOURCE_ATTRIBUTES", tracing.resource_attributes);
  take_pairs(read, "OTEL_EXPORTER_OTLP_HEADERS", tracing.headers);
  take_pairs(read, "OTEL_EXPORTER_OTLP_TRACES_HEADERS", tracing.headers);
  if (Status status = take_sampler(tracing, read); !status) return status;
  if (Status status = take_number(read, "OTEL_EXPORTER_OTLP_TIMEOUT", kMostMs, tracing.export_timeout_ms);
      !status)
    return status;
  if (Status status = take_number(read, "OTEL_BSP_SCHEDULE_DELAY", kMostMs, tracing.export_interval_ms);
      !status)
    return status;
  return take_number(read, "OTEL_BSP_MAX_QUEUE_SIZE", 1 << 20, tracing.queue_requests);
}

}  // namespace sluice::cli
