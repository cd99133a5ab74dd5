// What network threads count.
#pragma once

#include "base/meter.h"

namespace sluice {

struct ConnectionMeters {
  Counter& write_timeouts = meter::counter("sluice_http_write_timeouts_total",
                                           "Connections dropped because the client read nothing for too long.");
  Counter& read_timeouts = meter::counter("sluice_http_read_timeouts_total",
                                          "Connections closed because a request did not arrive in time.");
  Gauge& open = meter::gauge("sluice_http_connections", "Open connections.");
  Counter& writes =
      meter::counter("sluice_http_writes_total", "System calls that handed bytes to clients' sockets.");
  Counter& allocations =
      meter::counter("sluice_http_allocations_total", "Allocations of memory by network threads.");
};

// Made at the first call, which is before the first scrape.
inline ConnectionMeters& connection_meters() {
  static ConnectionMeters meters;
  return meters;
}

}  // namespace sluice
