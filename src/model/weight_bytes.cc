#include "model/weight_bytes.h"

namespace sluice {

size_t canonical_bytes(const WeightFormat& format, int64_t elements) {
  const auto n = size_t(elements);
  switch (format.element) {
    case WeightElement::f32:
      return n * 4;
    case WeightElement::f16:
    case WeightElement::bf16:
      return n * 2;
    case WeightElement::int8:
    case WeightElement::int4:
    case WeightElement::fp8:
      break;
  }
  // Scales, and minima where there are, are two bytes per group.
  const size_t values = format.element == WeightElement::int4 ? n / 2 : n;
  return values + (format.group ? n / size_t(format.group) * (format.has_min ? 4 : 2) : 0);
}

WeightFormat kept_as(const TensorInfo& tensor, const Backend& backend) {
  const bool matrix = tensor.shape.size() > 1 && tensor.shape[0] > 1;
  return matrix ? backend.kept_format(tensor.canonical, tensor.shape[0], tensor.shape[1]) : tensor.canonical;
}

size_t kept_bytes(const Checkpoint& checkpoint, const Backend& backend) {
  size_t bytes = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    int64_t elements = 1;
    for (const int64_t d : t.shape) elements *= d;
    bytes += canonical_bytes(kept_as(t, backend), elements);
  }
  return bytes;
}

}  // namespace sluice
