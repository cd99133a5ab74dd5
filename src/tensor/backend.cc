#include "tensor/backend.h"

#include <cstring>

namespace sluice {

Buffer::~Buffer() {
  if (data_) backend_->free(data_, bytes_);
}

void Backend::stage(int, std::span<const Upload> uploads, std::span<const SampleRow>, int) {
  for (const Upload& u : uploads) {
    for (size_t r = 0; r < u.rows; ++r) {
      std::memcpy(static_cast<std::byte*>(u.device) + r * u.device_pitch,
                  static_cast<const std::byte*>(u.host) + r * u.host_pitch, u.row_bytes);
    }
  }
}

}  // namespace sluice
