#include "server/grammar_members.h"

#include <algorithm>

#include "base/log.h"
#include "server/json_schema.h"
#include "server/limits.h"

namespace sluice {
namespace {

using Kind = GrammarSource::Kind;

constexpr std::string_view kAnyObject = R"({"type":"object","additionalProperties":true})";

Status set_schema(JsonView schema, GenerationOptions& options, const std::string& field) {
  auto checked = checked_json_schema(schema, field);
  if (!checked.ok()) return checked.error();
  return set_grammar(options, {Kind::kJsonSchema, std::move(*checked)}, field);
}

// vLLM takes a schema as an object or as its text.
Status set_schema_or_text(JsonView value, GenerationOptions& options, const std::string& field) {
  const auto text = value.string();
  if (!text) return set_schema(value, options, field);
  auto document = JsonDocument::parse(*text);
  if (!document.ok()) return member_error("is a string that is not valid JSON.", field);
  return set_schema(document->root(), options, field);
}

// The whole answer matches in any case, so anchors at both ends say nothing new.
Status set_regex(JsonView value, GenerationOptions& options, const std::string& field) {
  const auto text = value.string();
  if (!text || text->empty())
    return member_error("must be a regular expression: a string that is not empty.", field);
  if (text->size() > limits::kRegexBytes)
    return member_error(fmt::format("is longer than {} bytes.", limits::kRegexBytes), field);
  return set_grammar(options, {Kind::kRegex, std::string(*text)}, field);
}

Status set_ebnf(JsonView value, GenerationOptions& options, const std::string& field) {
  const auto text = value.string();
  if (!text || text->empty()) return member_error("must be a grammar: a string that is not empty.", field);
  return set_grammar(options, {Kind::kEbnf, std::string(*text)}, field);
}

void append_literal(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", c);
    else
      out += c;
  }
  out += '"';
}

Status set_choice(JsonView value, GenerationOptions& options, const std::string& field) {
  if (!value.is_array() || value.size() == 0)
    return member_error("must be an array of at least one string.", field);
  if (value.size() > size_t(limits::kChoices))
    return member_error(fmt::format("holds more than {} strings.", limits::kChoices), field);
  std::string ebnf = "root ::= ";
  Status status;
  value.each([&](JsonView item) {
    const auto text = item.string();
    if (!text || text->empty()) {
      status = member_error("must hold strings that are not empty.", field);
      return false;
    }
    if (ebnf.back() == '"') ebnf += " | ";
    append_literal(ebnf, *text);
    return true;
  });
  if (!status.ok()) return status;
  return set_grammar(options, {Kind::kEbnf, std::move(ebnf)}, field);
}

// Members of an object that has none but these.
Status only_members(JsonView value, std::initializer_list<std::string_view> known, const std::string& field) {
  Status status;
  value.each_member([&](std::string_view name, JsonView item) {
    if (!item.is_null() && std::find(known.begin(), known.end(), name) == known.end())
      status = member_error("is not known here.", field + "." + std::string(name.substr(0, 64)));
    return status.ok();
  });
  return status;
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

std::optional<JsonView> given(JsonView value, std::string_view name) {
  const auto found = value.find(name);
  return found && !found->is_null() ? found : std::nullopt;
}

// {"name","description","schema","strict"}. `strict` false asks for the same: an answer of the schema's form is
// what the client wants either way.
Status read_named_schema(JsonView format, const std::string& at, GenerationOptions& options) {
  if (const auto name = given(format, "name"); name && !is_name(name->string().value_or("")))
    return member_error("must be 1 to 64 letters, digits, '_' or '-'.", at + ".name");
  if (const auto strict = given(format, "strict"); strict && !strict->boolean())
    return member_error("must be a boolean.", at + ".strict");
  const auto schema = given(format, "schema");
  if (!schema) return member_error("is required.", at + ".schema");
  return set_schema(*schema, options, at + ".schema");
}

Status read_schema_format(JsonView value, GenerationOptions& options) {
  const std::string at = "response_format.json_schema";
  // llama.cpp's short form has the schema beside the type.
  if (const auto schema = given(value, "schema")) return set_schema(*schema, options, "response_format.schema");
  const auto format = given(value, "json_schema");
  if (!format || !format->is_object()) return member_error("is required and must be an object.", at);
  if (Status status = only_members(*format, {"name", "description", "schema", "strict"}, at); !status.ok())
    return status;
  return read_named_schema(*format, at, options);
}

}  // namespace

Status set_grammar(GenerationOptions& options, GrammarSource source, std::string field) {
  if (options.grammar)
    return member_error(
        fmt::format("cannot be given together with {}: an answer has one form.", options.grammar_field), field);
  options.grammar = std::move(source);
  options.grammar_field = std::move(field);
  return {};
}

Status read_response_format(JsonView value, GenerationOptions& options, const RequestBounds&) {
  if (!value.is_object()) return member_error("must be an object.");
  if (Status status = only_members(value, {"type", "json_schema", "schema"}, "response_format"); !status.ok())
    return status;
  const auto type = value.find("type");
  const auto name = type ? type->string() : std::nullopt;
  if (name == "text") return {};
  if (name == "json_schema") return read_schema_format(value, options);
  if (name == "json_object") {
    if (const auto schema = given(value, "schema"))
      return set_schema(*schema, options, "response_format.schema");
    return set_grammar(options, {Kind::kJsonSchema, std::string(kAnyObject)}, "response_format");
  }
  return member_error("must be \"text\", \"json_object\" or \"json_schema\".", "response_format.type");
}

Status read_flat_format(JsonView value, const std::string& field, GenerationOptions& options) {
  if (!value.is_object()) return member_error("must be an object.", field);
  if (Status status = only_members(value, {"type", "name", "description", "schema", "strict"}, field);
      !status.ok())
    return status;
  const auto type = given(value, "type");
  const auto kind = type ? type->string() : std::nullopt;
  if (kind == "text") return {};
  if (kind == "json_schema") return read_named_schema(value, field, options);
  if (kind == "json_object") return set_grammar(options, {Kind::kJsonSchema, std::string(kAnyObject)}, field);
  return member_error("must be \"text\", \"json_object\" or \"json_schema\".", field + ".type");
}

Status read_guided_json(JsonView value, GenerationOptions& options, const RequestBounds&) {
  return set_schema_or_text(value, options, "guided_json");
}
Status read_guided_regex(JsonView value, GenerationOptions& options, const RequestBounds&) {
  return set_regex(value, options, "guided_regex");
}
Status read_guided_choice(JsonView value, GenerationOptions& options, const RequestBounds&) {
  return set_choice(value, options, "guided_choice");
}
Status read_guided_grammar(JsonView value, GenerationOptions& options, const RequestBounds&) {
  return set_ebnf(value, options, "guided_grammar");
}
// llama.cpp's servers take "" for none.
Status read_llama_grammar(JsonView value, GenerationOptions& options, const RequestBounds&) {
  return value.string() == "" ? Status() : set_ebnf(value, options, "grammar");
}
Status read_llama_json_schema(JsonView value, GenerationOptions& options, const RequestBounds&) {
  return set_schema_or_text(value, options, "json_schema");
}

// vLLM's newer form: one object for all of them.
Status read_structured_outputs(JsonView value, GenerationOptions& options, const RequestBounds&) {
  const std::string at = "structured_outputs";
  if (!value.is_object()) return member_error("must be an object.");
  if (Status status = only_members(value, {"json", "regex", "choice", "grammar", "json_object"}, at);
      !status.ok())
    return status;
  Status status;
  if (const auto v = given(value, "json"); v && status.ok())
    status = set_schema_or_text(*v, options, at + ".json");
  if (const auto v = given(value, "regex"); v && status.ok()) status = set_regex(*v, options, at + ".regex");
  if (const auto v = given(value, "choice"); v && status.ok()) status = set_choice(*v, options, at + ".choice");
  if (const auto v = given(value, "grammar"); v && status.ok()) status = set_ebnf(*v, options, at + ".grammar");
  if (const auto v = given(value, "json_object"); v && v->boolean() != false && status.ok()) {
    if (!v->boolean()) return member_error("must be a boolean.", at + ".json_object");
    status = set_grammar(options, {Kind::kJsonSchema, std::string(kAnyObject)}, at + ".json_object");
  }
  return status;
}

Status check_grammar_members(const GenerationOptions& options) {
  if (options.grammar && options.ignore_eos)
    return member_error(fmt::format("cannot be given together with {}: the form says where the answer ends.",
                                    options.grammar_field),
                        "ignore_eos");
  return {};
}

}  // namespace sluice
