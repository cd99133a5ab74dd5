// The safetensors files of a folder, mapped and checked: one model.safetensors, or shards named by
// model.safetensors.index.json. Source of the format: huggingface/safetensors README.
//
// Layout: header length u64 (little-endian), a JSON object {name: {dtype, shape, data_offsets}}, the data.
// Untrusted: after `open`, every tensor's bytes lie in its file, have the size that dtype and shape ask for,
// and cover the file without a gap (so a truncated or padded file is seen at once). Duplicates, also across
// shards, are refused. Only headers are read to open. Immutable, any thread may read.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"

namespace sluice {

struct SafetensorsTensor {
  std::string name;
  std::string type;            // "F32", "BF16", …, as in the header
  std::vector<int64_t> shape;  // slowest first; empty for a scalar
  std::span<const std::byte> data;
  size_t file = 0;  // which shard
};

// The tensors of one file. `bytes` must outlive the result; `path` serves messages only.
Result<std::vector<SafetensorsTensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                         const std::string& path);

class SafetensorsFolder {
 public:
  static Result<std::unique_ptr<SafetensorsFolder>> open(const std::string& folder);

  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  const SafetensorsTensor* tensor(std::string_view name) const;  // null if absent
  const std::string& path() const { return path_; }              // of the folder
  const std::string& file_path(const SafetensorsTensor& t) const { return files_[t.file].path(); }
  void release(const SafetensorsTensor& t) const;  // its pages leave this process's memory

 private:
  Status open_shards(const std::string& folder, const std::string& index_text);
  Status add_file(const std::string& path);

  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace sluice
