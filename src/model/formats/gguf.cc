#include "model/formats/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>

#include "model/formats/shown.h"

namespace sluice {
static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

namespace {

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kTypeCount
};

constexpr uint32_t kValueBytes[kTypeCount] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Bounds that no real file comes near. The smallest entries: a key of one letter with a one-byte value, and a
// tensor of one letter with one dimension.
constexpr uint64_t kMaxKeys = 65536, kMaxTensors = 1 << 20, kMaxKeyBytes = 65535, kMaxTensorNameBytes = 64;
constexpr uint64_t kMinKeyEntry = 8 + 1 + 4 + 1, kMinTensorEntry = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kMaxAlignment = 1 << 20;

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double load_number(uint32_t type, const std::byte* at) {
  switch (type) {
    case kU8:
      return load<uint8_t>(at);
    case kI8:
      return load<int8_t>(at);
    case kU16:
      return load<uint16_t>(at);
    case kI16:
      return load<int16_t>(at);
    case kU32:
      return load<uint32_t>(at);
    case kI32:
      return load<int32_t>(at);
    case kF32:
      return double(load<float>(at));
    case kBool:
      return load<uint8_t>(at);
    case kU64:
      return double(load<uint64_t>(at));
    case kI64:
      return double(load<int64_t>(at));
    case kF64:
      return load<double>(at);
    default:
      return 0;
  }
}

}  // namespace

class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.bytes_) {}

  Status run() {
    if (Status s = head(); !s) return s;
    const size_t first_key = pos_;
    for (uint64_t i = 0; i < key_count_; i++) {
      if (Status s = key(i); !s) return s;
    }
    file_.key_bytes_ = bytes_.subspan(first_key, pos_ - first_key);
    if (Status s = alignment(); !s) return s;
    if (Status s = tensor_table(); !s) return s;
    if (Status s = place_data(); !s) return s;
    return find_overlap();
  }

 private:
  size_t left() const { return bytes_.size() - pos_; }
  const std::byte* at() const { return bytes_.data() + pos_; }

  template <typename T>
  bool read(T& value) {
    if (left() < sizeof value) return false;
    value = load<T>(at());
    pos_ += sizeof value;
    return true;
  }

  // A length and that many bytes.
  bool read_string(std::string_view& text) {
    uint64_t length;
    if (!read(length) || length > left()) return false;
    text = {reinterpret_cast<const char*>(at()), size_t(length)};
    pos_ += length;
    return true;
  }

  Error fail(const std::string& what) const {
    return {ErrorCode::kCorrupt, fmt::format("{}: {}", file_.path_, what)};
  }
  Error damaged(const std::string& what) const {
    return fail(what + "; the file is damaged, download it again");
  }
  Error truncated(const std::string& where) const {
    return fail(
        fmt::format("ends within {} (offset {} of {}); the file is truncated or damaged, download it again",
                    where, pos_, bytes_.size()));
  }

  Status head() {
    if (std::string mistake = mistaken_file(bytes_); !mistake.empty()) return fail("this is " + mistake);
    uint32_t magic = 0, version = 0;
    if (!read(magic)) return truncated("its first four bytes");
    if (magic != load<uint32_t>(reinterpret_cast<const std::byte*>("GGUF"))) {
      return fail(
          "offset 0: does not begin with \"GGUF\", so it is no GGUF model; give a .gguf file or a Hugging Face "
          "folder");
    }
    if (!read(version) || !read(tensor_count_) || !read(key_count_)) return truncated("its head");
    if (version == 1 || (version & 0xffff) == 0) {
      const char* why = version == 1   ? "the first, long replaced"
                        : version == 0 ? "unknown"
                                       : "of a big-endian machine";
      return fail(fmt::format("offset 4: version {} is {}; convert the model to GGUF v3", version, why));
    }
    if (version > 3)
      return fail(
          fmt::format("offset 4: GGUF version {} is newer than this program; 2 and 3 are read", version));
    file_.version_ = int(version);
    if (tensor_count_ > left() / kMinTensorEntry || tensor_count_ > kMaxTensors) {
      return damaged(fmt::format("offset 8: tensor count {} cannot be true of a file with {} bytes left",
                                 tensor_count_, left()));
    }
    if (key_count_ > left() / kMinKeyEntry || key_count_ > kMaxKeys) {
      return damaged(fmt::format("offset 16: key count {} cannot be true of a file with {} bytes left",
                                 key_count_, left()));
    }
    return {};
  }

  Status key(uint64_t index) {
    std::string_view name;
    if (!read_string(name)) return truncated(fmt::format("the name of key {} of {}", index + 1, key_count_));
    if (name.empty() || name.size() > kMaxKeyBytes) {
      return damaged(fmt::format("key {}: a name of {} bytes (1 to {} are allowed)", index + 1, name.size(),
                                 kMaxKeyBytes));
    }
    GgufFile::Value value;
    if (!read(value.type)) return truncated("key " + shown(name));
    if (Status s = value.type == kArray ? array(name, value) : scalar(name, value); !s) return s;
    if (!file_.values_.emplace(name, value).second)
      return damaged(fmt::format("key {} stands twice", shown(name)));
    return {};
  }

  Status scalar(std::string_view name, GgufFile::Value& value) {
    if (value.type >= kTypeCount)
      return damaged(fmt::format("key {}: unknown value type {}", shown(name), value.type));
    if (value.type == kString) {
      std::string_view text;
      if (!read_string(text)) return truncated("the string of key " + shown(name));
      value.at = reinterpret_cast<const std::byte*>(text.data());
      value.bytes = text.size();
      return {};
    }
    const uint32_t size = kValueBytes[value.type];
    if (left() < size) return truncated("the value of key " + shown(name));
    value.at = at();
    if (value.type == kBool && load<uint8_t>(value.at) > 1) {
      return damaged(fmt::format("key {}: a bool of value {}", shown(name), load<uint8_t>(value.at)));
    }
    pos_ += size;
    return {};
  }

  Status array(std::string_view name, GgufFile::Value& value) {
    value.array = true;
    if (!read(value.type) || !read(value.count)) return truncated("key " + shown(name));
    if (value.type == kArray)
      return damaged(fmt::format("key {}: an array of arrays, which no known model has", shown(name)));
    if (value.type >= kTypeCount)
      return damaged(fmt::format("key {}: unknown array element type {}", shown(name), value.type));
    const uint32_t element = value.type == kString ? 8 : kValueBytes[value.type];
    if (value.count > left() / element) {
      return damaged(fmt::format("key {}: an array of {} elements cannot be true of a file with {} bytes left",
                                 shown(name), value.count, left()));
    }
    value.at = at();
    if (value.type != kString) {
      pos_ += value.count * element;
      return {};
    }
    std::string_view text;
    for (uint64_t i = 0; i < value.count; i++) {
      if (!read_string(text)) return truncated(fmt::format("string {} of key {}", i, shown(name)));
    }
    return {};
  }

  Status alignment() {
    if (const GgufFile::Value* v = file_.find("general.alignment", false)) {
      if (v->type != kU32) return damaged("key 'general.alignment': must be an unsigned 32-bit number");
      alignment_ = load<uint32_t>(v->at);
    } else if (file_.has("general.alignment")) {
      return damaged("key 'general.alignment': must be an unsigned 32-bit number, not an array");
    }
    if (!std::has_single_bit(alignment_) || alignment_ < 8 || alignment_ > kMaxAlignment) {
      return damaged(fmt::format("key 'general.alignment': {} (a power of two from 8 to {} is expected)",
                                 alignment_, kMaxAlignment));
    }
    const std::optional<double> parts = file_.number("split.count");
    if (parts && *parts > 1) {
      return fail(fmt::format(
          "is one of {:.0f} parts of a split model; join them with `llama-gguf-split --merge`", *parts));
    }
    return {};
  }

  Status tensor_table() {
    file_.tensors_.reserve(tensor_count_);
    file_.tensor_index_.reserve(tensor_count_);
    offsets_.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; i++) {
      std::string_view name;
      if (!read_string(name))
        return truncated(fmt::format("the name of tensor {} of {}", i + 1, tensor_count_));
      if (name.empty() || name.size() > kMaxTensorNameBytes) {
        return damaged(fmt::format("tensor {}: its name {} has {} bytes (1 to {} are allowed)", i + 1,
                                   shown(name), name.size(), kMaxTensorNameBytes));
      }
      if (Status s = tensor(name); !s) return s;
      if (!file_.tensor_index_.emplace(name, i).second)
        return damaged(fmt::format("tensor {} stands twice", shown(name)));
    }
    return {};
  }

  Status tensor(std::string_view name) {
    GgufTensor t;
    t.name = name;
    uint32_t dimension_count = 0, type = 0;
    uint64_t offset = 0;
    if (!read(dimension_count)) return truncated("tensor " + shown(name));
    if (dimension_count < 1 || dimension_count > 4) {
      return damaged(
          fmt::format("tensor {}: {} dimensions (1 to 4 are allowed)", shown(name), dimension_count));
    }
    t.dimension_count = int(dimension_count);
    for (uint32_t d = 0; d < dimension_count; d++) {
      if (!read(t.dimensions[d])) return truncated("tensor " + shown(name));
      if (t.dimensions[d] <= 0) {
        return damaged(fmt::format("tensor {}: dimension {} is {}", shown(name), d, uint64_t(t.dimensions[d])));
      }
    }
    if (!read(type) || !read(offset)) return truncated("tensor " + shown(name));
    t.type = find_ggml_type(type);
    if (!t.type) {
      return fail(fmt::format("tensor {}: unknown type {}; convert the model to Q4_K_M, Q8_0 or BF16",
                              shown(name), type));
    }
    if (t.cols() % t.type->block != 0) {
      return damaged(fmt::format("tensor {}: rows of {} columns, but {} has blocks of {}", shown(name),
                                 t.cols(), t.type->name, t.type->block));
    }
    if (offset % alignment_ != 0) {
      return damaged(fmt::format("tensor {}: offset {} is no multiple of the alignment {}", shown(name), offset,
                                 alignment_));
    }
    file_.tensors_.push_back(t);
    offsets_.push_back(offset);
    return {};
  }

  // Sizes and borders, now that the start of the data is known.
  Status place_data() {
    if (tensor_count_ == 0) return {};
    const uint64_t start = (uint64_t(pos_) + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t available = start < bytes_.size() ? bytes_.size() - start : 0;
    for (size_t i = 0; i < file_.tensors_.size(); i++) {
      GgufTensor& t = file_.tensors_[i];
      uint64_t size = 0;
      bool wraps =
          __builtin_mul_overflow(uint64_t(t.cols() / t.type->block), uint64_t(t.type->block_bytes), &size);
      for (int d = 1; d < 4; d++) wraps |= __builtin_mul_overflow(size, uint64_t(t.dimensions[d]), &size);
      if (wraps) return damaged(fmt::format("tensor {}: its dimensions overflow", shown(t.name)));
      if (offsets_[i] > available || size > available - offsets_[i]) {
        return fail(
            fmt::format("tensor {}: {} bytes at offset {} reach beyond the {} bytes of data; the file is "
                        "truncated or damaged, "
                        "download it again",
                        shown(t.name), size, offsets_[i], available));
      }
      t.data = bytes_.subspan(start + offsets_[i], size);
    }
    return {};
  }

  Status find_overlap() {
    std::vector<size_t> order(offsets_.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
    for (size_t i = 1; i < order.size(); i++) {
      const GgufTensor &before = file_.tensors_[order[i - 1]], &after = file_.tensors_[order[i]];
      if (before.data.data() + before.data.size() > after.data.data()) {
        return damaged(fmt::format("tensors {} and {} overlap", shown(before.name), shown(after.name)));
      }
    }
    return {};
  }

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  size_t pos_ = 0;
  uint64_t tensor_count_ = 0, key_count_ = 0;
  uint64_t alignment_ = 32;
  std::vector<uint64_t> offsets_;  // per tensor, from the start of the data
};

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) return mapped.error();
  Result<std::unique_ptr<GgufFile>> file = parse(mapped->bytes(), path);
  if (file) (*file)->file_ = std::move(*mapped);
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::parse(std::span<const std::byte> bytes, const std::string& path) {
  auto file = std::make_unique<GgufFile>();
  file->path_ = path;
  file->bytes_ = bytes;
  if (Status s = GgufParser(*file).run(); !s) return s.error();
  return file;
}

const GgufFile::Value* GgufFile::find(std::string_view key, bool array) const {
  const auto it = values_.find(key);
  return it == values_.end() || it->second.array != array ? nullptr : &it->second;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const Value* v = find(key, false);
  if (!v || v->type == kString || v->type == kBool) return std::nullopt;
  return load_number(v->type, v->at);
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const Value* v = find(key, false);
  if (!v || v->type != kBool) return std::nullopt;
  return load<uint8_t>(v->at) != 0;
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const Value* v = find(key, false);
  if (!v || v->type != kString) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(v->at), v->bytes);
}

std::vector<double> GgufFile::numbers(std::string_view key) const {
  const Value* v = find(key, true);
  if (!v || v->type == kString) return {};
  std::vector<double> out(v->count);
  for (uint64_t i = 0; i < v->count; i++) out[i] = load_number(v->type, v->at + i * kValueBytes[v->type]);
  return out;
}

std::vector<std::string_view> GgufFile::strings(std::string_view key) const {
  const Value* v = find(key, true);
  if (!v || v->type != kString) return {};
  std::vector<std::string_view> out(v->count);
  const std::byte* at = v->at;
  for (std::string_view& text : out) {
    const uint64_t length = load<uint64_t>(at);
    text = {reinterpret_cast<const char*>(at + 8), size_t(length)};
    at += 8 + length;
  }
  return out;
}

size_t GgufFile::array_size(std::string_view key) const {
  const Value* v = find(key, true);
  return v ? v->count : 0;
}

const GgufTensor* GgufFile::tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

void GgufFile::release(const GgufTensor& tensor) const {
  if (!file_.bytes().empty()) file_.drop(size_t(tensor.data.data() - file_.bytes().data()), tensor.data.size());
}

}  // namespace sluice
