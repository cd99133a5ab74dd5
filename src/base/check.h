// CHECK(condition) or CHECK(condition, "text"): a bug ends the process with file, line and text on stderr.
#pragma once

namespace sluice {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const char* text = "");
// Called once by check_failed before it aborts; the engine prints its last StepRecords here.
void set_check_hook(void (*hook)());
}  // namespace sluice

#define CHECK(condition, ...)                                                            \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::sluice::check_failed(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (0)
