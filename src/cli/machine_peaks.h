// What this machine was measured to do, kept from run to run: the limits that a server's rates are told as
// shares of.
#pragma once

#include "observe/live.h"

namespace sluice::cli {

// Measured at the first start with so many threads (half a second, all of them), then read from
// $XDG_CACHE_HOME/sluice/peaks.json (or ~/.cache). Zero where nothing can be kept, or
// others use the machine: who wants them measures later.
LivePeaks cached_peaks(int threads);

// Arithmetic as the CPU's kernels do most of it: in 8-bit integers. Half a second, all threads.
LivePeaks measured_peaks(int threads);

}  // namespace sluice::cli
