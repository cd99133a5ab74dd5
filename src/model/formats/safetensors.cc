#include "model/formats/safetensors.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "model/formats/folder.h"
#include "model/formats/json_values.h"
#include "model/formats/shown.h"

namespace sluice {
namespace dom = simdjson::dom;

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own bound
constexpr size_t kMaxIndexBytes = 32 << 20;
constexpr size_t kMaxShards = 1024, kMaxDimensions = 8, kMaxNameBytes = 1024;

struct Element {
  const char* name;
  uint64_t bytes;
};
constexpr Element kElements[] = {{"F32", 4}, {"F16", 2},     {"BF16", 2},    {"F64", 8},
                                 {"I64", 8}, {"I32", 4},     {"I16", 2},     {"I8", 1},
                                 {"U8", 1},  {"BOOL", 1},    {"U16", 2},     {"U32", 4},
                                 {"U64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};

uint64_t element_bytes(std::string_view name) {
  for (const Element& e : kElements) {
    if (name == e.name) return e.bytes;
  }
  return 0;
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  Result<std::vector<SafetensorsTensor>> run() {
    if (std::string mistake = mistaken_file(bytes_); !mistake.empty()) return fail("this is " + mistake);
    uint64_t length = 0;
    if (bytes_.size() < sizeof length) return fail("ends within its first eight bytes; download it again");
    std::memcpy(&length, bytes_.data(), sizeof length);
    if (length > kMaxHeaderBytes)
      return fail(
          fmt::format("header length {} is beyond {}; not a safetensors file", length, kMaxHeaderBytes));
    if (length > bytes_.size() - 8) {
      return fail(fmt::format("header of {} bytes in a file of {}; the file is truncated, download it again",
                              length, bytes_.size()));
    }
    data_ = bytes_.subspan(8 + length);
    dom::parser parser;
    constexpr size_t kMaxDepth = 16;
    if (parser.allocate(length + 1, kMaxDepth) != simdjson::SUCCESS)
      return damaged("header too large to parse");
    const simdjson::padded_string padded(reinterpret_cast<const char*>(bytes_.data()) + 8, length);
    dom::object header;
    if (const auto e = parser.parse(padded).get(header)) {
      return damaged(fmt::format("its header is no JSON object: {}", json_error_words(e)));
    }
    for (const dom::key_value_pair& field : header) {
      if (field.key == "__metadata__") continue;
      if (Status s = tensor(field.key, field.value); !s) return s.error();
    }
    if (Status s = check_cover(); !s) return s.error();
    return std::move(tensors_);
  }

 private:
  Error fail(const std::string& what) const {
    return {ErrorCode::kCorrupt, fmt::format("{}: {}", path_, what)};
  }
  Error damaged(const std::string& what) const {
    return fail(what + "; the file is damaged, download it again");
  }

  Status tensor(std::string_view name, const dom::element& value) {
    if (name.empty() || name.size() > kMaxNameBytes)
      return damaged("a tensor name of " + std::to_string(name.size()) + " bytes");
    SafetensorsTensor t;
    t.name = name;
    std::string_view type;
    dom::array shape, offsets;
    if (value["dtype"].get(type) || value["shape"].get(shape) || value["data_offsets"].get(offsets)) {
      return damaged(fmt::format("tensor {}: dtype, shape and data_offsets are expected", shown(name)));
    }
    t.type = type;
    uint64_t size = element_bytes(type);
    if (size == 0) return damaged(fmt::format("tensor {}: unknown dtype {}", shown(name), shown(type)));
    bool wraps = false;
    for (const dom::element dimension : shape) {
      int64_t d = -1;
      if (dimension.get(d) || d < 0)
        return damaged(fmt::format("tensor {}: a dimension is no natural number", shown(name)));
      wraps |= __builtin_mul_overflow(size, uint64_t(d), &size);
      t.shape.push_back(d);
      if (t.shape.size() > kMaxDimensions)
        return damaged(fmt::format("tensor {}: more than {} dimensions", shown(name), kMaxDimensions));
    }
    uint64_t border[2] = {0, 0};
    size_t count = 0;
    for (const dom::element offset : offsets) {
      if (count == 2 || offset.get(border[count]))
        return damaged(fmt::format("tensor {}: data_offsets must be two numbers", shown(name)));
      count++;
    }
    if (count != 2 || border[0] > border[1] || border[1] > data_.size()) {
      return fail(fmt::format(
          "tensor {}: data_offsets [{}, {}] reach beyond the {} bytes of data; the file is truncated or "
          "damaged, download it again",
          shown(name), border[0], border[1], data_.size()));
    }
    if (wraps || border[1] - border[0] != size) {
      return damaged(fmt::format("tensor {}: {} bytes of data, but its dtype and shape ask for {}", shown(name),
                                 border[1] - border[0], wraps ? "more than fits" : std::to_string(size)));
    }
    t.data = data_.subspan(border[0], size);
    tensors_.push_back(std::move(t));
    return {};
  }

  // No duplicates, no gap, no overlap, nothing after the last.
  Status check_cover() {
    std::vector<size_t> order(tensors_.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return tensors_[a].name < tensors_[b].name; });
    for (size_t i = 1; i < order.size(); i++) {
      const std::string& name = tensors_[order[i]].name;
      if (name == tensors_[order[i - 1]].name)
        return damaged(fmt::format("tensor {} stands twice", shown(name)));
    }
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const auto &x = tensors_[a].data, &y = tensors_[b].data;
      return x.data() != y.data() ? x.data() < y.data() : x.size() < y.size();
    });
    const std::byte* end = data_.data();
    for (size_t i : order) {
      const SafetensorsTensor& t = tensors_[i];
      if (t.data.data() != end) {
        return damaged(fmt::format("tensor {}: {} the tensor before it", shown(t.name),
                                   t.data.data() < end ? "overlaps" : "leaves a gap to"));
      }
      end += t.data.size();
    }
    const auto rest = size_t(data_.data() + data_.size() - end);
    if (rest != 0) return damaged(fmt::format("{} bytes at its end belong to no tensor", rest));
    return {};
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
  std::span<const std::byte> data_;
  std::vector<SafetensorsTensor> tensors_;
};

// {"weight_map": {tensor: file}} -> map.
Result<std::map<std::string, std::string>> parse_index(const std::string& text, const std::string& path) {
  auto fail = [&](const std::string& what) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: {}", path, what)};
  };
  dom::parser parser;
  const simdjson::padded_string padded(text);
  dom::object map;
  if (const auto e = parser.parse(padded)["weight_map"].get(map)) {
    return fail(fmt::format("no object \"weight_map\" in it: {}", json_error_words(e)));
  }
  std::map<std::string, std::string> out;
  for (const dom::key_value_pair& field : map) {
    std::string_view file;
    if (field.value.get(file))
      return fail(fmt::format("tensor {}: its file must be a string", shown(field.key)));
    if (!plain_name(file) || !file.ends_with(".safetensors")) {
      return fail(
          fmt::format("tensor {}: {} is no .safetensors file of this folder", shown(field.key), shown(file)));
    }
    if (!out.emplace(field.key, file).second)
      return fail(fmt::format("tensor {} stands twice", shown(field.key)));
  }
  if (out.empty()) return fail("\"weight_map\" is empty");
  return out;
}

}  // namespace

Result<std::vector<SafetensorsTensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                         const std::string& path) {
  return HeaderParser(bytes, path).run();
}

Result<std::unique_ptr<SafetensorsFolder>> SafetensorsFolder::open(const std::string& folder) {
  auto out = std::make_unique<SafetensorsFolder>();
  out->path_ = folder;
  Result<std::string> index = read_folder_file(folder, "model.safetensors.index.json", kMaxIndexBytes);
  if (index) {
    if (Status s = out->open_shards(folder, *index); !s) return s.error();
    return out;
  }
  if (index.error().code != ErrorCode::kNotFound) return index.error();
  if (Status s = out->add_file(folder + "/model.safetensors"); !s) {
    if (s.error().code != ErrorCode::kNotFound) return s.error();
    return Error{
        ErrorCode::kNotFound,
        fmt::format("{}: neither model.safetensors nor model.safetensors.index.json is there; a checkpoint in "
                    "another format must be converted to safetensors or GGUF",
                    folder)};
  }
  return out;
}

Status SafetensorsFolder::open_shards(const std::string& folder, const std::string& index_text) {
  const std::string index_path = folder + "/model.safetensors.index.json";
  Result<std::map<std::string, std::string>> map = parse_index(index_text, index_path);
  if (!map) return map.error();
  std::map<std::string, size_t> shards;  // by name
  for (const auto& [tensor, file] : *map) shards.emplace(file, 0);
  if (shards.size() > kMaxShards) {
    return Error{ErrorCode::kTooLarge,
                 fmt::format("{}: {} files, more than {}", index_path, shards.size(), kMaxShards)};
  }
  for (auto& [file, number] : shards) {
    number = files_.size();
    Status s = add_file(folder + "/" + file);
    if (!s && s.error().code == ErrorCode::kNotFound) {
      return Error{
          ErrorCode::kNotFound,
          fmt::format("{}/{}: this shard is missing, though the index names it; download it", folder, file)};
    }
    if (!s) return s;
  }
  for (const auto& [name, file] : *map) {
    const SafetensorsTensor* t = tensor(name);
    if (!t || t->file != shards[file]) {
      return Error{ErrorCode::kCorrupt, fmt::format("{}/{}: tensor {} is not in it, though the index says so",
                                                    folder, file, shown(name))};
    }
  }
  return {};
}

Status SafetensorsFolder::add_file(const std::string& path) {
  Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.error();
  Result<std::vector<SafetensorsTensor>> parsed = parse_safetensors(file->bytes(), path);
  if (!parsed) return parsed.error();
  for (SafetensorsTensor& t : *parsed) {
    t.file = files_.size();
    if (!index_.emplace(t.name, tensors_.size()).second) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}: tensor {} is in another shard too", path, shown(t.name))};
    }
    tensors_.push_back(std::move(t));
  }
  files_.push_back(std::move(*file));
  return {};
}

const SafetensorsTensor* SafetensorsFolder::tensor(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

void SafetensorsFolder::release(const SafetensorsTensor& t) const {
  const MappedFile& file = files_[t.file];
  file.drop(size_t(t.data.data() - file.bytes().data()), t.data.size());
}

}  // namespace sluice
