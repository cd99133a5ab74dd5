// A GGUF file, versions 2 and 3, mapped and checked. Source of the format: ggml-org/ggml docs/gguf.md.
//
// Layout, little-endian: "GGUF", version u32, tensor count u64, key count u64; the keys (name, type u32,
// value); the tensors (name, dimension count u32, dimensions u64 with the fastest first, type u32, offset u64);
// padding to `general.alignment` (32 unless given); the data, each tensor at a multiple of the alignment from
// the start of it.
//
// A file is untrusted. Every count is compared with the bytes that are left before anything is allocated for
// it, sums and products cannot wrap, and after `open` every tensor's bytes lie in the mapping and overlap no
// other tensor's. Refused although the format allows it: arrays of arrays (no known key has one) and files
// split into several parts.
//
// Opening reads the header once and copies no text: a vocabulary of 262,144 strings takes about 10 ms.
// Immutable once open, so any thread may read.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "model/formats/ggml_type.h"
#include "model/formats/key_values.h"

namespace sluice {

struct GgufTensor {
  std::string_view name;                             // view of the mapping
  const GgmlType* type = nullptr;                    // a row of the table in ggml_type.h
  int dimension_count = 0;                           // 1..4
  std::array<int64_t, 4> dimensions = {1, 1, 1, 1};  // as in the file: fastest first
  std::span<const std::byte> data;

  int64_t cols() const { return dimensions[0]; }
  int64_t rows() const { return dimensions[1] * dimensions[2] * dimensions[3]; }
};

class GgufFile final : public KeyValues {
 public:
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);

  // Parses `bytes`, which must outlive the result; `path` serves messages only. For tests and the fuzzer.
  static Result<std::unique_ptr<GgufFile>> parse(std::span<const std::byte> bytes, const std::string& path);

  const std::string& path() const { return path_; }
  int version() const { return version_; }
  size_t file_bytes() const { return bytes_.size(); }
  // The keys as they lie in the file, one after the other, for a file that shall have them too.
  std::span<const std::byte> key_bytes() const { return key_bytes_; }
  uint64_t key_count() const { return values_.size(); }

  // Values. Strings are views of the mapping.
  bool has(std::string_view key) const override { return values_.contains(key); }
  std::optional<double> number(std::string_view key) const override;
  std::optional<bool> boolean(std::string_view key) const override;
  std::optional<std::string_view> string(std::string_view key) const override;
  std::vector<double> numbers(std::string_view key) const override;
  std::vector<std::string_view> strings(std::string_view key) const override;
  // Elements of an array of any type; 0 if there is no such array.
  size_t array_size(std::string_view key) const;

  std::span<const GgufTensor> tensors() const { return tensors_; }
  const GgufTensor* tensor(std::string_view name) const;  // null if absent
  // The tensor's pages leave this process's memory; they are read from the file again if touched.
  void release(const GgufTensor& tensor) const;

 private:
  friend class GgufParser;

  struct Value {
    uint32_t type = 0;  // GGUF value type; of the elements, for an array
    bool array = false;
    uint64_t count = 0;             // elements of an array
    const std::byte* at = nullptr;  // the value, the first element, or a string's bytes
    uint64_t bytes = 0;             // of a string
  };
  const Value* find(std::string_view key, bool array) const;

  std::string path_;
  MappedFile file_;
  std::span<const std::byte> bytes_, key_bytes_;
  int version_ = 0;
  std::unordered_map<std::string_view, Value> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace sluice
