// Writes the protobuf wire format: what an exporter needs of it, and no schema. Fields go out in the order of
// the calls; a value of zero is written too.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice {

class ProtobufWriter {
 public:
  explicit ProtobufWriter(std::string& out) : out_(out) {}

  void varint(int field, uint64_t value) {
    tag(field, 0);
    append_varint(value);
  }
  void fixed64(int field, uint64_t value) {
    tag(field, 1);
    append_raw(value);
  }
  void real(int field, double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    fixed64(field, bits);
  }
  void bytes(int field, std::string_view value) {
    tag(field, 2);
    append_varint(value.size());
    out_ += value;
  }
  // A message inside, which `fill` writes. Its length comes before it and is known after: what was written
  // moves up by a byte or two, which costs less than a buffer of its own.
  template <typename Fill>
  void message(int field, Fill fill) {
    tag(field, 2);
    const size_t from = out_.size();
    fill(*this);
    char length[10];
    size_t n = 0;
    for (uint64_t left = out_.size() - from; n == 0 || left > 0; left >>= 7)
      length[n++] = char(left >= 0x80 ? left | 0x80 : left);
    out_.insert(from, length, n);
  }

 private:
  void tag(int field, uint32_t wire_type) { append_varint(uint64_t(field) << 3 | wire_type); }
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += char(value | 0x80);
    out_ += char(value);
  }
  template <typename T>
  void append_raw(T value) {  // little-endian
    for (size_t i = 0; i < sizeof value; ++i) out_ += char(value >> (8 * i));
  }
  std::string& out_;
};

}  // namespace sluice
