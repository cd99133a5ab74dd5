#include "tensor/backend.h"

namespace sluice {

Buffer::~Buffer() {
  if (data_) backend_->free(data_, bytes_);
}

}  // namespace sluice
