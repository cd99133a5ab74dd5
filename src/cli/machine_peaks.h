// What this machine was measured to do, kept from run to run: the limits that a server's rates are told as
// shares of.
#pragma once

#include <string>

#include "observe/live.h"

namespace sluice::cli {

// Measured at the first three starts with so many threads (half a second, all of them), of which the best
// counts, then read from $XDG_CACHE_HOME/sluice/peaks.json (or ~/.cache). Zero where nothing is known and
// nothing can be kept, or others use the machine: who wants them measures later.
LivePeaks cached_peaks(int threads);

// What such a file has of a machine; of another one it is nothing.
struct KeptPeaks {
  LivePeaks best;
  int measurements = 0;  // that it is the best of
};
KeptPeaks kept_peaks(const std::string& file, const std::string& machine);
// Adds a measurement. False: the file cannot be written.
bool keep_peaks(const std::string& file, const std::string& machine, const LivePeaks& measured);

// Arithmetic as the CPU's kernels do most of it: in 8-bit integers. Half a second, all threads.
LivePeaks measured_peaks(int threads);

}  // namespace sluice::cli
