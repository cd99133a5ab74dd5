#include "server/json.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "server/json_fault.h"
#include "server/limits.h"

namespace sluice {

namespace dom = simdjson::dom;

static_assert(sizeof(dom::element) == 16 && std::is_trivially_copyable_v<dom::element>);

// Keeps the large header out of the handlers.
struct JsonBridge {
  static dom::element element(const JsonView& view) {
    dom::element e;
    std::memcpy(static_cast<void*>(&e), view.element_, sizeof e);
    return e;
  }
  static JsonView view(dom::element e) {
    JsonView v;
    std::memcpy(v.element_, static_cast<const void*>(&e), sizeof e);
    return v;
  }
};

JsonView::Type JsonView::type() const {
  switch (JsonBridge::element(*this).type()) {
    case dom::element_type::ARRAY:
      return Type::array;
    case dom::element_type::OBJECT:
      return Type::object;
    case dom::element_type::INT64:
      return Type::integer;
    case dom::element_type::UINT64:
      return Type::unsigned_integer;
    case dom::element_type::DOUBLE:
      return Type::number;
    case dom::element_type::STRING:
      return Type::string;
    case dom::element_type::BOOL:
      return Type::boolean;
    case dom::element_type::NULL_VALUE:
      return Type::null;
  }
  return Type::null;
}

const char* JsonView::type_name() const {
  static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "an integer",
                                           "a number", "a string",  "an array",   "an object"};
  return kNames[size_t(type())];
}

std::optional<bool> JsonView::boolean() const {
  if (type() != Type::boolean) return std::nullopt;
  return JsonBridge::element(*this).get_bool().value_unsafe();
}

std::optional<int64_t> JsonView::integer() const {
  const dom::element e = JsonBridge::element(*this);
  if (type() == Type::integer) return e.get_int64().value_unsafe();
  if (type() == Type::number) {
    const double d = e.get_double().value_unsafe();
    if (d == std::floor(d) && std::abs(d) < 9007199254740992.0) return int64_t(d);
  }
  return std::nullopt;
}

std::optional<double> JsonView::number() const {
  const dom::element e = JsonBridge::element(*this);
  switch (type()) {
    case Type::integer:
      return double(e.get_int64().value_unsafe());
    case Type::unsigned_integer:
      return double(e.get_uint64().value_unsafe());
    case Type::number:
      return e.get_double().value_unsafe();
    default:
      return std::nullopt;
  }
}

std::optional<std::string_view> JsonView::string() const {
  if (type() != Type::string) return std::nullopt;
  return JsonBridge::element(*this).get_string().value_unsafe();
}

size_t JsonView::size() const {
  const dom::element e = JsonBridge::element(*this);
  if (type() == Type::array) return e.get_array().value_unsafe().size();
  if (type() == Type::object) return e.get_object().value_unsafe().size();
  return 0;
}

JsonView JsonView::at(size_t index) const {
  return JsonBridge::view(JsonBridge::element(*this).get_array().value_unsafe().at(index).value_unsafe());
}

std::optional<JsonView> JsonView::find(std::string_view name) const {
  dom::element found;
  if (type() != Type::object || JsonBridge::element(*this).get_object().value_unsafe().at_key(name).get(found))
    return std::nullopt;
  return JsonBridge::view(found);
}

void JsonView::each_item(ItemCall call, void* context) const {
  if (type() != Type::array) return;
  const dom::array array = JsonBridge::element(*this).get_array().value_unsafe();
  for (dom::element e : array) {
    if (!call(context, JsonBridge::view(e))) return;
  }
}

void JsonView::each_pair(PairCall call, void* context) const {
  if (type() != Type::object) return;
  const dom::object object = JsonBridge::element(*this).get_object().value_unsafe();
  for (dom::key_value_pair pair : object) {
    if (!call(context, pair.key, JsonBridge::view(pair.value))) return;
  }
}

std::string JsonView::text() const { return simdjson::minify(JsonBridge::element(*this)); }

struct JsonDocument::Parser {
  std::unique_ptr<dom::parser> parser;
};

namespace {

// A parser's buffers are a dozen allocations; a thread keeps one parser, as long as it is small.
constexpr size_t kSpareParserBytes = 32 << 10;
thread_local std::unique_ptr<dom::parser> spare_parser;

}  // namespace

JsonDocument::JsonDocument() : parser_(new Parser{std::move(spare_parser)}) {
  if (!parser_->parser) parser_->parser = std::make_unique<dom::parser>();
}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() {
  if (parser_ && parser_->parser->capacity() <= kSpareParserBytes) spare_parser = std::move(parser_->parser);
}

namespace {

Error parse_error(simdjson::error_code code, std::string_view text) {
  const auto error = [](std::string message, std::string field = {}) {
    return Error{ErrorCode::kInvalidArgument, std::move(message), std::move(field)};
  };
  if (code == simdjson::EMPTY) return error("The request body is empty; a JSON object is expected.");
  JsonFault fault = find_json_fault(text, limits::kJsonDepth);
  const std::string where =
      " (line " + std::to_string(fault.line) + ", column " + std::to_string(fault.column) + ").";
  switch (code) {
    case simdjson::DEPTH_ERROR:
      return error("The JSON is nested too deep: at most " + std::to_string(limits::kJsonDepth) + " levels" +
                   where);
    case simdjson::UTF8_ERROR:
      return error("The request body is not valid UTF-8" + where);
    default:
      if (fault.kind == JsonFault::Kind::number)
        return error("The request body holds a number that is out of range" + where, std::move(fault.path));
      return error("The request body is not valid JSON" + where);
  }
}

}  // namespace

Result<JsonDocument> JsonDocument::parse(std::string_view text) {
  JsonDocument document;
  dom::parser& parser = *document.parser_->parser;
  simdjson::error_code code = simdjson::SUCCESS;
  if (parser.capacity() < std::max<size_t>(text.size(), 1))
    code = parser.allocate(std::max<size_t>(text.size(), 4096), limits::kJsonDepth + 1);
  dom::element root;
  if (!code) code = parser.parse(text.data(), text.size(), true).get(root);
  if (code) return parse_error(code, text);
  document.root_ = JsonBridge::view(root);
  return document;
}

}  // namespace sluice
