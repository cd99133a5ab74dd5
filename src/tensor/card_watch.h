// What the driver says of a card: where it is, and while it works. Asked, never told; NVML is opened at run
// time.
#pragma once

#include <memory>
#include <string>

#include "base/card_reading.h"

namespace sluice {

class CardWatch {
 public:
  virtual ~CardWatch() = default;
  // Takes about 50 ms, most of it the sampling of PCIe. One thread at a time.
  virtual CardReading read() = 0;
};

// `device` as CUDA counts them. Null: this build has no CUDA, or the machine no card of that number or no NVML.
std::unique_ptr<CardWatch> watch_card(int device);

// Where the card hangs on the PCI bus: "0000:3B:00.0". Empty where watch_card would find no card.
std::string card_bus_id(int device);

}  // namespace sluice
