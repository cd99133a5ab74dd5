// What the driver says of a card while it works. Asked, never told; NVML, opened at run time.
#pragma once

#include <memory>

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

}  // namespace sluice
