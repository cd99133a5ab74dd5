#include "model/formats/safetensors_writer.h"

#include <fmt/format.h>

#include "model/formats/json_text.h"
#include "model/formats/whole_file.h"

namespace sluice {

Status write_safetensors(const std::string& path, std::span<const OutputTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::string header = "{\"__metadata__\":{";
  for (const auto& [key, value] : metadata)
    header += fmt::format("{}{}:{}", header.back() == '{' ? "" : ",", json_text(key), json_text(value));
  header += '}';
  size_t at = 0;
  for (const OutputTensor& t : tensors) {
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_text(t.name),
                          t.type, fmt::join(t.shape, ","), at, at + t.data.size());
    at += t.data.size();
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const uint64_t length = header.size();
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(&length, 1)),
                                                    std::as_bytes(std::span(header))};
  for (const OutputTensor& t : tensors) pieces.emplace_back(t.data);
  return write_whole_file(path, pieces);
}

}  // namespace sluice
