#include "cli/load_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/log.h"

namespace sluice::cli {

LoadProgressLine::LoadProgressLine() : tty_(isatty(STDERR_FILENO)) {}

void LoadProgressLine::show(const std::string& phase, double fraction) {
  const TimeNs now = now_ns();
  const bool new_phase = phase != phase_;
  if (new_phase && !tty_) LOG(debug, "loading: {}", phase);
  phase_ = phase;
  if (!tty_ || (!new_phase && fraction < 1 && now - last_ < 100'000'000)) return;
  last_ = now;
  shown_ = true;
  fmt::print(stderr, "\r\033[Kloading: {} {:.0f} %", phase, fraction * 100);
  std::fflush(stderr);
}

void LoadProgressLine::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace sluice::cli
