#include "engine/batching_settings.h"

#include <fmt/format.h>

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr int kMostWaitMs = 60'000, kMostBatch = 4096;
constexpr const char* kDynamicSize = "inference.dynamic_batching.max_batch_size";
constexpr const char* kWindowSize = "scheduler.window.max_batch_size";

Error wrong(const char* key, std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message), key};
}

Status within(const char* key, int value, int least, int most) {
  if (value >= least && value <= most) return {};
  return wrong(key, fmt::format("must be from {} to {}, not {}", least, most, value));
}

Status check_ranges(const BatchingSettings& s) {
  const struct {
    const char* key;
    int value, least, most;
  } numbers[] = {
      {kDynamicSize, s.dynamic.max_batch_size, 1, kMostBatch},
      {"inference.dynamic_batching.batch_wait_timeout_ms", s.dynamic.batch_wait_timeout_ms, 0, kMostWaitMs},
      {"scheduler.window.window_ms", s.window.window_ms, 1, kMostWaitMs},
      {kWindowSize, s.window.max_batch_size, 1, kMostBatch},
      {"scheduler.window.min_trigger_interval_ms", s.window.min_trigger_interval_ms, 1, kMostWaitMs},
      {"scheduler.window.batch_timeout_ms", s.window.batch_timeout_ms, 1, kMostWaitMs},
  };
  for (const auto& n : numbers)
    if (Status ok = within(n.key, n.value, n.least, n.most); !ok) return ok;
  return {};
}

// A number that nobody has set gives way where fewer sequences run at the same time.
int batch_size(const BatchingSettings& s, int max_sequences) {
  const int size = s.dynamic.enabled ? s.dynamic.max_batch_size : s.window.max_batch_size;
  const int unset = s.dynamic.enabled ? BatchingSettings::Dynamic{}.max_batch_size
                                      : BatchingSettings::Window{}.max_batch_size;
  return size == unset && max_sequences ? std::min(size, max_sequences) : size;
}

// The keys against each other; the numbers are in range.
Status check_together(const BatchingSettings& s, BatchingKind kind, int max_sequences) {
  const BatchingSettings::Window& w = s.window;
  if (s.dynamic.enabled && kind != BatchingKind::windowed)
    return wrong("scheduler.policy",
                 fmt::format("{} contradicts inference.dynamic_batching.enabled: true, which "
                             "is windowed; set one of the two",
                             s.policy));
  if (s.dynamic.enabled && !(w == BatchingSettings::Window{}))
    return wrong("scheduler.window",
                 "has no effect with inference.dynamic_batching.enabled: true, which has "
                 "numbers of its own; set one of the two");
  if (kind != BatchingKind::windowed) return {};
  if (!s.dynamic.enabled && w.batch_timeout_ms > w.window_ms)
    return wrong(
        "scheduler.window.batch_timeout_ms",
        fmt::format("must be at most scheduler.window.window_ms ({}), not {}: after the window nothing "
                    "more joins the batch",
                    w.window_ms, w.batch_timeout_ms));
  if (!s.dynamic.enabled && w.min_trigger_interval_ms > w.batch_timeout_ms)
    return wrong(
        "scheduler.window.min_trigger_interval_ms",
        fmt::format("must be at most scheduler.window.batch_timeout_ms ({}), not {}: it would never be "
                    "what comes first",
                    w.batch_timeout_ms, w.min_trigger_interval_ms));
  const int batch = batch_size(s, max_sequences);
  if (max_sequences && batch > max_sequences)
    return wrong(s.dynamic.enabled ? kDynamicSize : kWindowSize,
                 fmt::format("must be at most engine.max_sequences ({}), not {}: a batch runs at the same time",
                             max_sequences, batch));
  return {};
}

}  // namespace

Result<Batching> batching_of(const BatchingSettings& s, int max_sequences) {
  if (Status ok = check_ranges(s); !ok) return std::move(ok).error();
  Batching batching;
  if (s.policy == "windowed" || (s.policy.empty() && s.dynamic.enabled))
    batching.kind = BatchingKind::windowed;
  else if (s.policy == "serial")
    batching.kind = BatchingKind::serial;
  else if (!s.policy.empty() && s.policy != "continuous")
    return wrong("scheduler.policy", fmt::format("must be continuous, windowed or serial, not '{}'", s.policy));
  if (Status ok = check_together(s, batching.kind, max_sequences); !ok) return std::move(ok).error();
  if (batching.kind != BatchingKind::windowed) return batching;
  const BatchingSettings::Window& w = s.window;
  batching.window = s.dynamic.enabled ? BatchWindow{.max_batch = batch_size(s, max_sequences),
                                                    .max_wait_ns = s.dynamic.batch_wait_timeout_ms * kMs,
                                                    .idle_ns = 0,
                                                    .span_ns = 0}
                                      : BatchWindow{.max_batch = batch_size(s, max_sequences),
                                                    .max_wait_ns = w.batch_timeout_ms * kMs,
                                                    .idle_ns = w.min_trigger_interval_ms * kMs,
                                                    .span_ns = w.window_ms * kMs};
  return batching;
}

std::string describe(const Batching& b) {
  if (b.kind != BatchingKind::windowed) return batching_name(b.kind);
  std::string text = fmt::format("windowed: batches of up to {} requests, after {:g} ms", b.window.max_batch,
                                 ms(b.window.max_wait_ns));
  if (b.window.idle_ns) text += fmt::format(" or {:g} ms without an arrival", ms(b.window.idle_ns));
  if (b.window.span_ns) text += fmt::format(", arrived within {:g} ms", ms(b.window.span_ns));
  return text;
}

}  // namespace sluice
