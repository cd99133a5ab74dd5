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
  void fixed32(int field, uint32_t value) {
    tag(field, 5);
    append_raw(value);
  }
  void bytes(int field, std::string_view value) {
    tag(field, 2);
    append_varint(value.size());
    out_ += value;
  }
  // A message inside: `fill` gets a writer of its own.
  template <typename Fill>
  void message(int field, Fill fill) {
    std::string inner;
    ProtobufWriter writer(inner);
    fill(writer);
    bytes(field, inner);
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
