// Any bytes as a config.json: refused or read into numbers that the rest of the room can work with.
#include <cstdlib>

#include "model/families/family.h"
#include "model/formats/json_values.h"
#include "model/formats/quantized_linear.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const auto config = JsonValues::parse({reinterpret_cast<const char*>(data), size}, "config.json");
  if (!config) return 0;
  if (const auto q = read_quantization(*config, "config.json");
      !q && q.error().message.find('\n') != std::string::npos)
    std::abort();
  for (const Family* family : families()) {
    for (const char* prefix : {"", "text_config."}) {
      const Result<ModelSpec> spec = read_config_spec(*family, *config, "config.json", prefix);
      if (!spec) {
        if (spec.error().message.find('\n') != std::string::npos) std::abort();
        continue;
      }
      const LayerGroups groups = layer_groups(*spec);
      if (groups.groups.size() > size_t(kMaxLayerGroups) || groups.layers_per_group < 1) std::abort();
      if (spec->rope.inverse_frequencies(spec->head_dim).empty()) std::abort();
    }
  }
  return 0;
}
