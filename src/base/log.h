// LOG(info, "loaded {} in {:.1f} s", name, s): one line on stderr. Levels: debug, info, warn, error.
// Messages are formatted with fmt at the call site; spdlog lives in log.cc alone.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace sluice {

enum class LogLevel { debug, info, warn, error, off };

void set_log_level(LogLevel level);
void set_log_json(bool json);  // one JSON object a line, for log shippers
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view text);

}  // namespace sluice

#define LOG(level, ...)                                                        \
  do {                                                                         \
    if (::sluice::log_enabled(::sluice::LogLevel::level))                      \
      ::sluice::log_line(::sluice::LogLevel::level, fmt::format(__VA_ARGS__)); \
  } while (0)
