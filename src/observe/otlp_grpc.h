// OTLP over gRPC: one HTTP/2 connection to the collector, kept open, one unary call at a time. nghttp2 makes
// and reads the frames (gRPC's own library would be fifty times the code for this one call); it and Asio live
// in otlp_grpc.cc alone.
//
// Sources: gRPC over HTTP2 (grpc/grpc, doc/PROTOCOL-HTTP2.md); OTLP specification 1.5, section OTLP/gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "observe/tracer.h"

namespace sluice {

class OtlpGrpc {
 public:
  static Result<std::unique_ptr<TraceSink>> create(const TracingSettings& settings);
};

// What a call's end means: `http` is the answer's status, `grpc` that of its trailers, -1 where there was none.
TraceSink::Answer judge_grpc(int http, int grpc, const std::string& message);

}  // namespace sluice
