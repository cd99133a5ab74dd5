// Gauges about this process, under the names that Prometheus' client libraries use.
#pragma once

namespace sluice {

// Reads /proc/self and sets the gauges; makes them at first use. Call it before a scrape. Any thread.
void update_process_meters();

}  // namespace sluice
