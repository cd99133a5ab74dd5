#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace sluice::cli {
namespace {

constexpr size_t kWidth = 40;
constexpr TimeNs kRedraw = 200'000'000, kLine = 60'000'000'000;

std::string span(double seconds) {
  const auto s = int64_t(seconds + 0.5);
  return s >= 3600 ? fmt::format("{} h {:02} min", s / 3600, s / 60 % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

ProgressBar::ProgressBar() : tty_(isatty(STDERR_FILENO)) {}

std::string ProgressBar::left(double done) const {
  if (done <= first_) return {};
  return fmt::format(", {} left", span(double(now_ns() - start_) / 1e9 * (1 - done) / (done - first_)));
}

void ProgressBar::show(double done) {
  const TimeNs now = now_ns();
  if (first_ < 0) first_ = done, tenths_ = int(done * 10);
  if (!tty_) {
    if (int(done * 10) <= tenths_ && now - last_ < kLine) return;
    fmt::print(stderr, "{:3.0f} % done{}\n", done * 100, left(done));
  } else {
    if (shown_ && done < 1 && now - last_ < kRedraw) return;
    const auto filled = size_t(done * kWidth);
    fmt::print(stderr, "\r\033[K[{}{}] {:3.0f} %{}", std::string(filled, '#'),
               std::string(kWidth - filled, ' '), done * 100, left(done));
    shown_ = true;
  }
  tenths_ = int(done * 10), last_ = now;
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace sluice::cli
