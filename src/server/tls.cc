#include "server/tls.h"

#include <cerrno>

#ifdef SLUICE_TLS

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <climits>
#include <cstring>

namespace sluice {

namespace {

SSL_CTX* ctx(void* p) { return static_cast<SSL_CTX*>(p); }
SSL* ssl(void* p) { return static_cast<SSL*>(p); }

constexpr const char* kCertFile = "server.tls.cert_file";
constexpr const char* kKeyFile = "server.tls.key_file";

// The first error is the cause; what OpenSSL adds to it says only where it was met.
Error file_error(const char* key, const std::string& file) {
  const unsigned long code = ERR_peek_error();
  const char* reason =
      ERR_SYSTEM_ERROR(code) ? std::strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
  const std::string why = reason != nullptr ? reason : "not readable";
  ERR_clear_error();
  return Error{ErrorCode::kInvalidArgument, std::string(key) + ": " + file + ": " + why, ""};
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const std::string& cert_file,
                                                             const std::string& key_file) {
  ERR_clear_error();
  SSL_CTX* const made = SSL_CTX_new(TLS_server_method());
  if (made == nullptr) return file_error(kCertFile, "OpenSSL");
  std::shared_ptr<const TlsContext> context(new TlsContext(made));
  SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION);
  SSL_CTX_set_options(made, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // What could not be sent yet is offered again from a buffer that may have moved and grown.
  SSL_CTX_set_mode(
      made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_use_certificate_chain_file(made, cert_file.c_str()) != 1) return file_error(kCertFile, cert_file);
  if (SSL_CTX_use_PrivateKey_file(made, key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return file_error(kKeyFile, key_file);
  if (SSL_CTX_check_private_key(made) != 1) return file_error(kKeyFile, key_file);
  return context;
}

TlsContext::~TlsContext() { SSL_CTX_free(ctx(context_)); }

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int socket)
    : context_(std::move(context)), session_(SSL_new(ctx(context_->context_))) {
  broken_ = session_ == nullptr || SSL_set_fd(ssl(session_), socket) != 1;
  if (!broken_) SSL_set_accept_state(ssl(session_));
}

TlsSession::~TlsSession() { SSL_free(ssl(session_)); }

ssize_t TlsSession::outcome(int result, bool reading) {
  if (result > 0) return result;
  const int error = SSL_get_error(ssl(session_), result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    if (reading) read_wants_write_ = error == SSL_ERROR_WANT_WRITE;
    errno = EAGAIN;
    return -1;
  }
  if (error == SSL_ERROR_ZERO_RETURN && reading) return 0;
  broken_ = true;  // after such an error the session must not be used again
  ERR_clear_error();
  errno = EPROTO;
  return -1;
}

ssize_t TlsSession::read(char* data, size_t bytes) {
  if (broken_) return errno = EPROTO, -1;
  read_wants_write_ = false;
  ERR_clear_error();
  return outcome(SSL_read(ssl(session_), data, int(std::min<size_t>(bytes, INT_MAX))), true);
}

ssize_t TlsSession::write(const char* data, size_t bytes) {
  if (broken_) return errno = EPROTO, -1;
  ERR_clear_error();
  return outcome(SSL_write(ssl(session_), data, int(std::min<size_t>(bytes, INT_MAX))), false);
}

void TlsSession::close_notify() {
  if (broken_ || SSL_in_init(ssl(session_))) return;
  ERR_clear_error();
  if (SSL_shutdown(ssl(session_)) < 0) ERR_clear_error();
}

}  // namespace sluice

#else

namespace sluice {

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const std::string&, const std::string&) {
  return Error{ErrorCode::kUnsupported, "TLS: this build has no OpenSSL; put a proxy with TLS in front", ""};
}
TlsContext::~TlsContext() = default;
TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int)
    : context_(std::move(context)), session_(nullptr) {}
TlsSession::~TlsSession() = default;
ssize_t TlsSession::outcome(int, bool) { return -1; }
ssize_t TlsSession::read(char*, size_t) { return errno = EPROTO, -1; }
ssize_t TlsSession::write(const char*, size_t) { return errno = EPROTO, -1; }
void TlsSession::close_notify() {}

}  // namespace sluice

#endif
