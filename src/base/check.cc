#include "base/check.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/crash_record.h"

namespace sluice {
namespace {
std::atomic<void (*)()> hook{nullptr};

constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr unsigned kHookSeconds = 5;
std::array<struct sigaction, kFaults.size()> before;

// The signal comes again as this returns: from the same instruction, or from abort.
void on_fault(int signal) {
  for (size_t i = 0; i < kFaults.size(); ++i) sigaction(kFaults[i], &before[i], nullptr);
  if (auto h = hook.exchange(nullptr)) {
    alarm(kHookSeconds);
    std::fprintf(stderr, "sluice: signal %d; the last steps:\n", signal);
    h();
    std::fflush(stderr);
    alarm(0);
  }
  raise(signal);
}
}  // namespace

void record_crashes() {
  struct sigaction action {};
  action.sa_handler = on_fault;
  for (size_t i = 0; i < kFaults.size(); ++i) sigaction(kFaults[i], &action, &before[i]);
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
