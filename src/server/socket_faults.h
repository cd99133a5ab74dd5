// What tests plant on a client's socket (base/faults.h, docs/faults.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

enum class SocketSide : int64_t { reading = 1, sending = 2 };  // as amounts of rules name them

// Before a system call on the socket, of a connection in the state of that number. `*bytes`, what it moves at
// most, may become less; null: the socket is OpenSSL's, which moves records and not bytes. False: the call does
// not happen, and errno says why.
bool passes_faults(int fd, SocketSide side, int64_t state, size_t* bytes);

}  // namespace sluice
