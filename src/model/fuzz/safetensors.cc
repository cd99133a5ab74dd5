// Any bytes as a safetensors file: refused or read, and every tensor's bytes stay inside the file.
#include "model/formats/safetensors.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const auto tensors = parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
  if (!tensors) {
    if (tensors.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  size_t total = 0;
  for (const SafetensorsTensor& t : *tensors) {
    if (!t.data.empty()) total += size_t(t.data.front()) + size_t(t.data.back());
    if (t.data.size() > size) std::abort();
  }
  return total == size_t(-1);
}
