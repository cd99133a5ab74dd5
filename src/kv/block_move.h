// Names of blocks, and what the device is asked to do with them.
#pragma once

#include <cstdint>
#include <utility>

#include "tensor/kv_tier.h"

namespace sluice {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

// Content of one place to be had in another: from, to. Converted where their tiers differ.
using BlockMove = std::pair<KvRef, KvRef>;

}  // namespace sluice
