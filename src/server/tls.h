// TLS on a socket that someone else owns and waits for: OpenSSL behind the calls that a plain socket has. Where
// the build found no OpenSSL, `create` says so.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace sluice {

// Certificate and key; shared by all connections, immutable.
class TlsContext {
 public:
  // PEM files: the certificate with its chain, and its key. TLS 1.2 and 1.3. Errors name the file.
  static Result<std::shared_ptr<const TlsContext>> create(const std::string& cert_file,
                                                          const std::string& key_file);
  TlsContext(const TlsContext&) = delete;
  ~TlsContext();

 private:
  friend class TlsSession;
  explicit TlsContext(void* context) : context_(context) {}
  void* context_;  // SSL_CTX
};

// One connection; on its thread. The handshake happens inside the first calls.
class TlsSession {
 public:
  TlsSession(std::shared_ptr<const TlsContext> context, int socket);
  TlsSession(const TlsSession&) = delete;
  ~TlsSession();

  // As recv and send of a socket that does not block: bytes; 0 at the end (read); -1 with errno EAGAIN where it
  // has to wait, or EPROTO where nothing will come any more.
  ssize_t read(char* data, size_t bytes);
  ssize_t write(const char* data, size_t bytes);
  // Whether the last read waits for the socket to take bytes (the handshake's), not to give some.
  bool read_wants_write() const { return read_wants_write_; }
  // Tells the other side that nothing follows.
  void close_notify();

 private:
  ssize_t outcome(int result, bool reading);
  const std::shared_ptr<const TlsContext> context_;
  void* session_;  // SSL
  bool read_wants_write_ = false;
  bool broken_ = false;
};

}  // namespace sluice
