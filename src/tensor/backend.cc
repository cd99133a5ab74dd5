#include "tensor/backend.h"

#include <fmt/format.h>

#include <cstring>

#include "base/bytes.h"

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

void Backend::move_blocks(const MoveBlocksArgs& a) {
  CHECK(a.batch.move_count == 0, "this backend keeps keys and values in one precision");
}

void Backend::copy_host(const HostCopiesArgs& a) {
  for (const HostCopy& copy : a.copies) {
    if (copy.to_host)
      copy_out(copy.host, a.pool + copy.pool_offset, copy.bytes);
    else
      copy_in(a.pool + copy.pool_offset, copy.host, copy.bytes);
  }
}

std::string others_on_card(const DeviceInfo& device) {
  if (device.memory_others < size_t{64} << 20) return {};
  return fmt::format("; {:.1f} GiB are used by other processes on this card", gib(device.memory_others));
}

}  // namespace sluice
