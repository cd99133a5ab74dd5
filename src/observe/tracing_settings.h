// What of tracing can be set; filled by cli.
#pragma once

#include <string>
#include <vector>

namespace sluice {

struct TracingSettings {
  // Of the collector, as otlp_endpoint.h reads it: http://HOST[:PORT][/PATH]. Empty: off.
  std::string endpoint;
  std::string protocol = "http/protobuf";  // or "grpc"
  double sample_ratio = 0.001;             // of traces that begin here
  int slow_ms = 30000;  // a request that takes longer is kept, whatever was decided; 0: no such rule
  std::string service_name = "sluice";
  std::vector<std::string> resource_attributes;  // "key=value"
  std::vector<std::string> headers;              // "name=value", of each export
  int queue_requests = 2048;                     // finished ones that wait; what comes on top is dropped
  int export_interval_ms = 1000;                 // longest wait of a finished one, while the collector answers
  int export_timeout_ms = 10000;                 // of one export
};

}  // namespace sluice
