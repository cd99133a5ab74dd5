// Reading JSON that clients send: a thin view over simdjson's tree. Invalid UTF-8, bad escapes, nesting deeper
// than limits::kJsonDepth and numbers beyond 64 bits or double are errors of the parse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

// A value inside a JsonDocument; valid while that lives.
class JsonView {
 public:
  enum class Type : uint8_t { null, boolean, integer, unsigned_integer, number, string, array, object };

  Type type() const;
  bool is_null() const { return type() == Type::null; }
  bool is_object() const { return type() == Type::object; }
  bool is_array() const { return type() == Type::array; }
  std::optional<bool> boolean() const;
  std::optional<int64_t> integer() const;  // also for 3.0; none for 1.5 and for what does not fit
  std::optional<double> number() const;
  std::optional<std::string_view> string() const;
  // Elements of an array or members of an object, at most 2^24 - 1; else 0.
  size_t size() const;
  JsonView at(size_t index) const;                            // array only, index < size()
  std::optional<JsonView> find(std::string_view name) const;  // object only; first of that name

  // Calls f(JsonView) for each element until one returns false.
  template <typename F>
  void each(F&& f) const {
    each_item([](void* context, JsonView value) { return bool((*static_cast<F*>(context))(value)); }, &f);
  }
  // Calls f(std::string_view name, JsonView) for each member, in order, doubles included, until one returns
  // false.
  template <typename F>
  void each_member(F&& f) const {
    each_pair([](void* context, std::string_view name,
                 JsonView value) { return bool((*static_cast<F*>(context))(name, value)); },
              &f);
  }

  // The value as JSON text without white space.
  std::string text() const;
  const char* type_name() const;  // "a string", for error messages

 private:
  friend class JsonDocument;
  friend struct JsonBridge;
  using ItemCall = bool (*)(void*, JsonView);
  using PairCall = bool (*)(void*, std::string_view, JsonView);
  void each_item(ItemCall call, void* context) const;
  void each_pair(PairCall call, void* context) const;
  alignas(8) unsigned char element_[16] = {};  // a simdjson::dom::element
};

class JsonDocument {
 public:
  // kInvalidArgument with a message that says where, and holds no bytes of the text but plain names of members.
  static Result<JsonDocument> parse(std::string_view text);
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();
  JsonView root() const { return root_; }

 private:
  struct Parser;
  JsonDocument();
  std::unique_ptr<Parser> parser_;
  JsonView root_;
};

}  // namespace sluice
