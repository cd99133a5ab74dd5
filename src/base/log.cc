#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace sluice {
namespace {

std::atomic<int> threshold{int(LogLevel::info)};
std::atomic<bool> as_json{false};

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

}  // namespace

void set_log_level(LogLevel level) { threshold.store(int(level), std::memory_order_relaxed); }

void set_log_json(bool json) {
  as_json.store(json);
  logger().set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})"
                            : "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
}

bool log_enabled(LogLevel level) { return int(level) >= threshold.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view text) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  // spdlog's pattern does not escape %v.
  if (as_json.load(std::memory_order_relaxed))
    logger().log(kLevels[int(level)], "{}", json_escaped(text));
  else
    logger().log(kLevels[int(level)], "{}", text);
}

}  // namespace sluice
