// Runs as JSON lines, so that a session that was broken off goes on where it was, and figures can be reckoned
// again.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tune/run.h"

namespace sluice::tune {

std::string to_line(const Run& run);  // without its end
Result<Run> from_line(const std::string& line);

// An empty list where there is no such file. Lines that are no JSON (a write was cut short) are left out; one
// of another version is an error that names it.
Result<std::vector<Run>> read_runs(const std::string& path);
Status append_run(const std::string& path, const Run& run);

}  // namespace sluice::tune
