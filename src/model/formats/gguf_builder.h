// Writes GGUF bytes for tests, right or wrong on purpose.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class GgufBuilder {
 public:
  template <typename T>
  GgufBuilder& key(std::string_view name, uint32_t type, T value) {
    string(head_, name), put(head_, type), put(head_, value);
    keys_++;
    return *this;
  }
  GgufBuilder& u32(std::string_view name, uint32_t value) { return key(name, 4, value); }
  GgufBuilder& f32(std::string_view name, float value) { return key(name, 6, value); }
  GgufBuilder& text(std::string_view name, std::string_view value) {
    string(head_, name), put(head_, uint32_t(8)), string(head_, value);
    keys_++;
    return *this;
  }
  GgufBuilder& texts(std::string_view name, const std::vector<std::string>& values) {
    string(head_, name), put(head_, uint32_t(9)), put(head_, uint32_t(8)), put(head_, uint64_t(values.size()));
    for (const std::string& v : values) string(head_, v);
    keys_++;
    return *this;
  }
  template <typename T>
  GgufBuilder& array(std::string_view name, uint32_t element_type, const std::vector<T>& values) {
    string(head_, name), put(head_, uint32_t(9)), put(head_, element_type), put(head_, uint64_t(values.size()));
    for (const T& v : values) put(head_, v);
    keys_++;
    return *this;
  }
  // Dimensions fastest first, as the format has them.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type,
                      const std::string& data) {
    string(table_, name), put(table_, uint32_t(dimensions.size()));
    for (uint64_t d : dimensions) put(table_, d);
    put(table_, type), put(table_, uint64_t(data_.size()));
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    tensors_++;
    return *this;
  }
  GgufBuilder& tensor_f32(std::string_view name, const std::vector<uint64_t>& dimensions,
                          const std::vector<float>& values) {
    std::string data(values.size() * 4, '\0');
    std::memcpy(data.data(), values.data(), data.size());
    return tensor(name, dimensions, 0, data);
  }
  std::string bytes(uint32_t version = 3) const {
    std::string out = "GGUF";
    put(out, version), put(out, tensors_), put(out, keys_);
    out += head_ + table_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  template <typename T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void string(std::string& out, std::string_view text) {
    put(out, uint64_t(text.size()));
    out += text;
  }
  std::string head_, table_, data_;
  uint64_t keys_ = 0, tensors_ = 0;
};

}  // namespace sluice
