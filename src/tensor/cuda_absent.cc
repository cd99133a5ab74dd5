// Stands in for tensor/cuda in a build without nvcc.
#include "tensor/backend.h"
#include "tensor/card_watch.h"

namespace sluice {

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions&) {
  return Error{ErrorCode::kNotFound, "this build has no CUDA backend (nvcc was not found when it was built)",
               "device"};
}

std::unique_ptr<CardWatch> watch_card(int) { return nullptr; }
std::string card_bus_id(int) { return {}; }

}  // namespace sluice
