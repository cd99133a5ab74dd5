// What a driver says of a card while it works: made in tensor, told by observe.
#pragma once

#include <string>

namespace sluice {

// Numbers that the card does not tell are 0.
struct CardReading {
  std::string name;
  double clock_mhz = 0, most_clock_mhz = 0;  // of the multiprocessors
  double power_w = 0, power_limit_w = 0, temperature_c = 0;
  std::string throttled_by;       // what holds the clock below what was asked for; empty: nothing
  double utilisation = 0;         // 0..1 of the last second or so with a kernel on it
  double memory_utilisation = 0;  // 0..1 of it with its memory busy
  double pcie_bytes_s = 0;        // both ways, over 20 ms
  double pcie_peak_bytes_s = 0;   // of its link as it is now, one way
};

}  // namespace sluice
