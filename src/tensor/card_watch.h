// What the driver says of a card while it works. Asked, never told; NVML, opened at run time.
#pragma once

#include <memory>
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

class CardWatch {
 public:
  virtual ~CardWatch() = default;
  // Takes about 50 ms, most of it the sampling of PCIe. One thread at a time.
  virtual CardReading read() = 0;
};

// `device` as CUDA counts them. Null: this build has no CUDA, or the machine no card of that number or no NVML.
std::unique_ptr<CardWatch> watch_card(int device);

}  // namespace sluice
