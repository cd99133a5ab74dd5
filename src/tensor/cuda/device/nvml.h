// What the driver's management library (libnvidia-ml.so.1) says of a card: for the log at start and for
// messages about memory. It is opened at run time and only asked, never told; where it is absent, nothing is
// known. NVML API reference, NVIDIA.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace sluice::cuda {

struct CardState {
  std::string driver;      // "580.159.04"
  int power_w = 0;         // drawn now
  int power_limit_w = 0;   // as set
  int clock_mhz = 0;       // of the multiprocessors, now
  int most_clock_mhz = 0;  // the highest it may run at
  int temperature_c = 0;   // of the chip
  size_t used_bytes = 0;   // by all processes; asked before this one uses the card: by the others
};

// `pci_bus_id` as cudaDeviceGetPCIBusId writes it: the two libraries count cards in different orders. Numbers
// that the card does not tell are 0. Takes a few milliseconds.
std::optional<CardState> card_state(const char* pci_bus_id);

// One line: "driver 580.159.04, 84 of 700 W, 1980 of 1980 MHz, 31 °C"; without what the card does not tell.
std::string describe(const CardState& state);

}  // namespace sluice::cuda
