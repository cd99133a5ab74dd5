// The HTTP server: sockets, routes, JSON, text. Opens its port at once; answers /health from then on, and
// everything that needs the model with 503 and the load's phase until `serve_model`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "observe/tracing_settings.h"
#include "server/traffic/traffic_settings.h"

namespace sluice {

class ServedModel;
struct LiveSources;

struct ServerConfig {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  int network_threads = 1;
  // Frames are made in buffers that are used again, all that a client has to get goes in one write, and what
  // happens in one turn of a loop is handed over once. Without: the plain way, to measure what that is worth: a
  // buffer for each frame, a write for each token, a message for each wish and each answer.
  bool pooled_io = true;
  int text_threads = 1;                   // tokenising and templates of long prompts
  std::string model_name;                 // id in the API; empty: the model's own
  std::vector<std::string> api_keys;      // as api_keys.h reads them; empty: open
  std::vector<std::string> cors_origins;  // whose pages may call from a browser; "*": all; empty: our own alone
  // How calls of tools stand in answers: auto (by the template), hermes, llama3, mistral, none.
  std::string tool_parser = "auto";
  std::string reasoning_parser = "auto";    // auto, think, none
  std::string tls_cert_file, tls_key_file;  // PEM; both: HTTPS in place of HTTP
  size_t max_body_bytes = 32u << 20;
  size_t max_header_bytes = 32u << 10;
  int max_connections = 16384;
  int max_connections_per_address = 4096;  // loopback excepted
  int header_timeout_ms = 15000;           // from first byte of a request head to its end
  int body_timeout_ms = 60000;
  int idle_timeout_ms = 120000;             // between requests of a kept-alive connection
  int write_timeout_ms = 60000;             // a client that reads nothing for so long is dropped
  int request_timeout_ms = 0;               // deadline of every generation; 0: none but x-request-timeout-ms
  bool page = true;                         // serves the page at /; without, / lists the routes
  size_t response_store_bytes = 64u << 20;  // of /v1/responses with store: true; 0: none is kept
  std::string embedding_pooling = "mean";   // or "last"
  int max_n = 128;
  int max_prompts = 256;      // prompts of one completions request
  int max_completions = 256;  // prompts x n of one request
  TracingSettings tracing;
  TrafficSettings traffic;
};

class Server {
 public:
  // Binds and starts the network threads. Errors: address in use, bad host (named).
  static Result<std::unique_ptr<Server>> start(const ServerConfig& config);
  virtual ~Server() = default;

  virtual int port() const = 0;
  virtual void set_loading(const std::string& phase,
                           double fraction) = 0;  // what /ready and 503s say meanwhile
  // From now on /ready is 200. Again: from now on requests are this model's; answers that the one before it has
  // begun go on with it, and it is freed after the last of them. `sources`: for the live numbers and the
  // diagnosis.
  virtual void serve_model(std::shared_ptr<ServedModel> model, LiveSources sources) = 0;
  // A second model, which gets what `traffic.canary` says; null: there is none any more. After serve_model;
  // again: as there.
  virtual void serve_canary(std::shared_ptr<ServedModel> model) = 0;
  // Engine::give_up was said to one: what waits for a canary's is answered by the stable pool where nothing has
  // been sent yet, else ends with an error.
  virtual void engine_hangs() = 0;
  // From the next request on. Errors: settings that make no sense; then nothing changes.
  virtual Status set_traffic(const TrafficSettings& settings) = 0;
  // /ready goes 503, streams finish until `deadline`, connections close, threads join.
  virtual void drain(TimeNs deadline) = 0;
};

}  // namespace sluice
