#include "base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace sluice {
namespace {
std::atomic<void (*)()> hook{nullptr};
}

void set_check_hook(void (*h)()) { hook.store(h); }

void check_failed(const char* condition, const char* file, int line, const char* text) {
  std::fprintf(stderr, "sluice: bug: %s:%d: CHECK(%s) failed%s%s\n", file, line, condition, *text ? ": " : "",
               text);
  if (auto h = hook.exchange(nullptr)) h();
  std::fflush(stderr);
  std::abort();
}

}  // namespace sluice
