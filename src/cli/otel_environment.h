// The environment variables that OpenTelemetry defines for every SDK, as far as they concern traces. They stand
// between sluice.yaml and the flags.
#pragma once

#include "base/result.h"
#include "observe/tracing_settings.h"

namespace sluice::cli {

// `read` is std::getenv, or a test's. Known: OTEL_EXPORTER_OTLP_ENDPOINT (by HTTP /v1/traces is added to its
// path), …_TRACES_ENDPOINT, …_PROTOCOL, …_HEADERS, …_TIMEOUT, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_TRACES_SAMPLER and _ARG, OTEL_TRACES_EXPORTER, OTEL_SDK_DISABLED, OTEL_BSP_SCHEDULE_DELAY and
// _MAX_QUEUE_SIZE. Errors name the variable: a value out of range.
Status take_otel_environment(TracingSettings& tracing, const char* (*read)(const char* name));

}  // namespace sluice::cli
