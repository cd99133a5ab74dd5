#include "quantize/gguf_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/mapped_file.h"
#include "model/formats/safetensors.h"
#include "model/formats/whole_file.h"
#include "tensor/half.h"

namespace sluice::quantize {
namespace {

constexpr int64_t kBlock = 32;
constexpr uint32_t kStringType = 8, kU32Type = 4;

void put_half(std::vector<std::byte>& out, float value) {
  const uint16_t half = f32_to_f16(value);
  const auto* at = reinterpret_cast<const std::byte*>(&half);
  out.insert(out.end(), at, at + sizeof half);
}

// Q4_1: scale, minimum, then 16 bytes with weights 0 .. 15 in their low halves and 16 .. 31 in the high ones.
// Q8_0: scale, then 32 signed bytes.
std::vector<std::byte> block_rows(const IntegerMatrix& m, const std::vector<int32_t>& order) {
  CHECK(m.group == kBlock);
  std::vector<int64_t> row_at(static_cast<size_t>(m.rows));  // which row is stored where
  for (int64_t r = 0; r < m.rows; r++) row_at[size_t(order.empty() ? r : order[size_t(r)])] = r;
  std::vector<std::byte> out;
  for (const int64_t r : row_at) {
    for (int64_t g = 0; g < m.groups(); g++) {
      const size_t at = size_t(r * m.groups() + g);
      const uint8_t* q = m.q.data() + at * kBlock;
      put_half(out, m.scale[at]);
      if (m.bits == 8) {
        CHECK(m.zero[at] == 128, "Q8_0 has no minimum");
        for (int i = 0; i < kBlock; i++) out.push_back(std::byte(uint8_t(int(q[i]) - 128)));
        continue;
      }
      put_half(out, -m.scale[at] * float(m.zero[at]));
      for (int i = 0; i < kBlock / 2; i++) out.push_back(std::byte(q[i] | q[i + kBlock / 2] << 4));
    }
  }
  return out;
}

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_string(std::string& out, std::string_view text) {
  put(out, uint64_t(text.size()));
  out += text;
}

// A number for people and tools to read; everything else says what the tensors are.
void set_file_type(std::string& keys, uint32_t type) {
  std::string entry;
  put_string(entry, "general.file_type");
  put(entry, kU32Type);
  if (const size_t at = keys.find(entry); at != std::string::npos)
    std::memcpy(keys.data() + at + entry.size(), &type, sizeof type);
}

struct Entry {
  std::string slot;
  const GgmlType* type;
  const SafetensorsTensor* tensor;
};

}  // namespace

std::vector<OutputTensor> folder_tensors(const Plan& plan, const std::string& base, const Quantized& m) {
  if (const auto* floats = std::get_if<FloatMatrix>(&m)) return fp8_tensors(base, *floats);
  const IntegerMatrix& integers = std::get<IntegerMatrix>(m);
  switch (plan.layout) {
    case Layout::awq:
      return awq_tensors(base, integers);
    case Layout::gptq:
      return gptq_tensors(base, integers);
    case Layout::compressed:
      return plan.grid.group == 0 ? int8_tensors(base, integers) : packed_tensors(base, integers);
    case Layout::fp8:
    case Layout::gguf:
      break;
  }
  CHECK(false, "a layout without integers");
}

Result<std::vector<OutputTensor>> gguf_tensor(const Checkpoint& checkpoint, const std::string& slot,
                                              const Quantized* quantized, const Matrix* replaced) {
  const GgufTensor* stored = checkpoint.gguf()->tensor(slot);
  CHECK(stored != nullptr, "experts are not written");
  OutputTensor out{fmt::format("{}:{}", slot, stored->type->name), "U8", {stored->rows(), 0}, {}};
  if (quantized) {
    const IntegerMatrix& m = std::get<IntegerMatrix>(*quantized);
    out.name = fmt::format("{}:{}", slot, m.bits == 4 ? "Q4_1" : "Q8_0");
    out.data = block_rows(m, checkpoint.row_order(slot));
  } else if (replaced) {
    const std::vector<int32_t> order = checkpoint.row_order(slot);
    CHECK(order.empty(), "only vectors in their own order take factors");
    out.name = slot + ":F32";
    out.data.resize(replaced->values.size() * sizeof(float));
    std::memcpy(out.data.data(), replaced->values.data(), out.data.size());
  } else {
    out.data.assign(stored->data.begin(), stored->data.end());
  }
  out.shape[1] = int64_t(out.data.size()) / out.shape[0];
  checkpoint.release(slot);
  return std::vector{std::move(out)};
}

Status write_gguf(const GgufFile& source, std::span<const std::string> shards,
                  const std::vector<std::pair<std::string, std::string>>& texts, const std::string& path) {
  std::vector<MappedFile> files;
  std::vector<std::vector<SafetensorsTensor>> tensors;
  for (const std::string& shard : shards) {
    Result<MappedFile> file = MappedFile::open(shard);
    if (!file) return std::move(file).error();
    files.push_back(std::move(*file));
    Result<std::vector<SafetensorsTensor>> parsed = parse_safetensors(files.back().bytes(), shard);
    if (!parsed) return std::move(parsed).error();
    tensors.push_back(std::move(*parsed));
  }
  std::vector<Entry> entries;
  for (const auto& shard : tensors) {
    for (const SafetensorsTensor& t : shard) {
      const size_t colon = t.name.rfind(':');
      entries.push_back({t.name.substr(0, colon), find_ggml_type(t.name.c_str() + colon + 1), &t});
      CHECK(entries.back().type != nullptr);
    }
  }
  // What no slot reads: frequencies of the rotation, for one.
  std::vector<const GgufTensor*> others;
  for (const GgufTensor& t : source.tensors())
    if (std::none_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.slot == t.name; }))
      others.push_back(&t);

  std::string keys(reinterpret_cast<const char*>(source.key_bytes().data()), source.key_bytes().size());
  const bool four = std::any_of(entries.begin(), entries.end(), [](const Entry& e) {
    return e.slot.starts_with("blk.") && std::strcmp(e.type->name, "Q4_1") == 0;
  });
  set_file_type(keys, four ? 3 : 7);
  uint64_t key_count = source.key_count();
  for (const auto& [key, text] : texts) {
    if (text.empty() || source.has(key)) continue;
    put_string(keys, key), put(keys, kStringType), put_string(keys, text);
    ++key_count;
  }
  std::string head = "GGUF";
  put(head, uint32_t(3)), put(head, uint64_t(entries.size() + others.size())), put(head, key_count);
  head += keys;
  const auto alignment = size_t(source.number("general.alignment").value_or(32));
  const std::vector<std::byte> zeros(alignment);
  const auto padded = [&](size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  std::vector<std::span<const std::byte>> data;
  size_t offset = 0;
  const auto add = [&](std::string_view name, const GgufTensor& shape, const GgmlType& type,
                       std::span<const std::byte> bytes) {
    put_string(head, name), put(head, uint32_t(shape.dimension_count));
    for (int d = 0; d < shape.dimension_count; d++) put(head, uint64_t(shape.dimensions[size_t(d)]));
    put(head, uint32_t(type.id)), put(head, uint64_t(offset));
    data.push_back(bytes), data.push_back(std::span(zeros).first(padded(bytes.size()) - bytes.size()));
    offset += padded(bytes.size());
  };
  for (const Entry& e : entries) add(e.slot, *source.tensor(e.slot), *e.type, e.tensor->data);
  for (const GgufTensor* t : others) add(t->name, *t, *t->type, t->data);
  head.resize(padded(head.size()));
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(head))};
  pieces.insert(pieces.end(), data.begin(), data.end());
  return write_whole_file(path, pieces);
}

}  // namespace sluice::quantize
