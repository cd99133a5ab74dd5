#include "server/socket_faults.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/faults.h"

namespace sluice {

bool passes_faults(int fd, SocketSide side, int64_t state, size_t* bytes) {
  constexpr int64_t kFirstState = 3;  // behind the sides
  if (faults::met_at(Fault::kill_connection, {0, int64_t(side), kFirstState + state})) {
    ::shutdown(fd, SHUT_RDWR);
    errno = ECONNRESET;
    return false;
  }
  if (faults::met_at(Fault::eagain, {0, int64_t(side)})) {
    errno = EAGAIN;
    return false;
  }
  if (bytes == nullptr) return true;
  if (const auto most = faults::met(side == SocketSide::reading ? Fault::short_read : Fault::short_write))
    *bytes = std::min(*bytes, size_t(std::max<int64_t>(1, *most)));
  return true;
}

}  // namespace sluice
