// Sockets: network threads that accept, read, write and time out connections, and hand whole requests to a
// handler.
//
// Each network thread owns an event loop, a listening socket (SO_REUSEPORT spreads new connections over them)
// and the connections that it accepted; nothing of a connection is shared, so nothing is locked. An idle
// connection costs its object (about 0.5 KB): bytes are read into one buffer per thread once the socket is
// readable, and deadlines are looked at every limits::kTickMs instead of holding a timer each.
//
// While a request is being answered its socket is still watched for reading, so a client that leaves is noticed
// at once. A client that half-closes its side after the request counts as having left: a close looks the same.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "server/http.h"
#include "server/server.h"

namespace sluice {

class Network {
 public:
  // Binds, listens and starts the threads. `handler` must outlive this object. Errors: kIo naming host and
  // port.
  static Result<std::unique_ptr<Network>> start(const ServerConfig& config, HttpHandler& handler);
  virtual ~Network() = default;

  virtual int port() const = 0;
  // Connections that are open, and those of them with a request that is read or answered. Any thread.
  virtual int connections() const = 0;
  virtual int busy() const = 0;

  // Closes idle connections; others, and new ones (which may still ask whether the server is ready), close
  // after their answer.
  virtual void drain() = 0;
  // As if each exchange had been woken.
  virtual void wake_exchanges() = 0;
  // Tells the listeners of what is still being answered that time is up.
  virtual void shut_down_exchanges() = 0;
  // Cuts what is left and joins the threads. Idempotent; the destructor does it too.
  virtual void stop() = 0;
};

}  // namespace sluice
