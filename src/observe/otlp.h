// The account of a request as OpenTelemetry spans, in OTLP's protobuf (opentelemetry-proto 1.x,
// collector/trace/v1). Names and attributes: the semantic conventions for generative AI and HTTP. Pure.
//
//   chat MODEL         server   first byte of the request to the last byte of the answer
//   ├ accept                    read, parse, template, tokenizer
//   ├ queue                     handed to the engine, not yet admitted
//   ├ prefill                   first admission to first token
//   ├ decode                    first token to last
//   └ stream                    first byte of the answer to its last; overlaps decode where it is streamed
//
// Each carries what the account says of its time: `sluice.span.<name>_ms`. A request that the engine did not
// take has the first span alone. Of several choices each has queue, prefill and decode of its own.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "observe/request_log.h"

namespace sluice {

// Why a trace is kept.
enum class KeptBy : uint8_t { parent, ratio, error, slow, anomaly };
const char* kept_by_name(KeptBy why);

struct FinishedTrace {
  std::shared_ptr<const RequestAccount> account;  // its `trace` is set
  KeptBy why = KeptBy::ratio;
};

using ResourceAttributes = std::vector<std::pair<std::string, std::string>>;

// Of a deadline, the engine, a shutdown, a client that stopped reading, or refused with 429 or 5xx. A client
// that left or asked for nonsense is no error of the server.
bool is_error(const RequestAccount& account);

// One ExportTraceServiceRequest.
std::string otlp_traces(std::span<const FinishedTrace> traces, const ResourceAttributes& resource);

}  // namespace sluice
