#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <utility>

#include "base/log_scope.h"

namespace sluice {
namespace {

std::atomic<int> threshold{int(LogLevel::info)};
std::atomic<bool> as_json{false};
thread_local const LogIds* ids_now = nullptr;  // of the innermost scope

spdlog::logger& logger() {
  static auto instance = [] {
    auto l = spdlog::stderr_color_mt("sluice");
    l->set_level(spdlog::level::debug);
    l->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    return l;
  }();
  return *instance;
}

std::string json_escaped(std::string_view text) {
  std::string out;
  for (unsigned char c : text) {
    if (c == '"' || c == '\\')
      out += '\\', out += char(c);
    else if (c < 0x20)
      out += fmt::format("\\u{:04x}", int(c));
    else
      out += char(c);
  }
  return out;
}

std::string json_members(std::string_view text) {
  std::string out = fmt::format(R"("message":"{}")", json_escaped(text));
  if (ids_now == nullptr) return out;
  if (!ids_now->request_id.empty())
    out += fmt::format(R"(,"request_id":"{}")", json_escaped(ids_now->request_id));
  if (!ids_now->trace_id.empty())
    out += fmt::format(R"(,"trace_id":"{}","span_id":"{}","trace_flags":"{}")", ids_now->trace_id,
                       ids_now->span_id, ids_now->sampled ? "01" : "00");
  return out;
}

}  // namespace

LogScope::LogScope(LogIds ids) : ids_(std::move(ids)), before_(std::exchange(ids_now, &ids_)) {}
LogScope::~LogScope() { ids_now = before_; }

void set_log_level(LogLevel level) { threshold.store(int(level), std::memory_order_relaxed); }

void set_log_json(bool json) {
  as_json.store(json);
  logger().set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                            : "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
}

bool log_enabled(LogLevel level) { return int(level) >= threshold.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view text) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  // spdlog's pattern does not escape %v.
  if (as_json.load(std::memory_order_relaxed))
    logger().log(kLevels[int(level)], "{}", json_members(text));
  else if (ids_now != nullptr && !ids_now->trace_id.empty())
    logger().log(kLevels[int(level)], "{} trace_id={} span_id={}", text, ids_now->trace_id, ids_now->span_id);
  else
    logger().log(kLevels[int(level)], "{}", text);
}

}  // namespace sluice
