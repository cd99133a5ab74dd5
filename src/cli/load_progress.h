// Progress of a load: one line that is overwritten on a terminal, log lines per phase elsewhere. Used by one
// thread.
#pragma once

#include <string>

#include "base/clock.h"

namespace sluice::cli {

class LoadProgressLine {
 public:
  LoadProgressLine();
  ~LoadProgressLine() { clear(); }
  void show(const std::string& phase, double fraction);
  void clear();  // leaves the terminal's line empty

 private:
  bool tty_;
  bool shown_ = false;
  std::string phase_;
  TimeNs last_ = 0;
};

}  // namespace sluice::cli
