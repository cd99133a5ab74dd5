// How far a long piece of work is, and how long the rest will take: a line that is overwritten on a terminal;
// elsewhere a line for each tenth, and for each minute. On stderr, by one thread.
#pragma once

#include <string>

#include "base/clock.h"

namespace sluice::cli {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  // 0..1. The first share that is shown was there before this work began.
  void show(double done);
  void clear();  // leaves the terminal's line empty

 private:
  std::string left(double done) const;

  const bool tty_;
  const TimeNs start_ = now_ns();
  TimeNs last_ = start_;
  double first_ = -1;
  int tenths_ = 0;
  bool shown_ = false;
};

}  // namespace sluice::cli
