#include "server/json_schema.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/log.h"
#include "server/json_writer.h"
#include "server/limits.h"
#include "server/request_members.h"

namespace sluice {
namespace {

using Type = JsonView::Type;

template <size_t N>
bool among(const std::string_view (&list)[N], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// Say something about a value, and nothing about which values are valid.
constexpr std::string_view kAnnotations[] = {"title",    "description", "default", "examples",
                                             "$schema",  "$comment",    "$id",     "deprecated",
                                             "readOnly", "writeOnly",   "$anchor", "discriminator"};
constexpr std::string_view kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
constexpr std::string_view kFormats[] = {
    "email",    "date", "time", "date-time",     "duration",     "ipv4",         "ipv6",
    "hostname", "uuid", "uri",  "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"};
// Keywords that alone decide a schema: at most one of them, with nothing but annotations (and a type) beside
// it.
constexpr std::string_view kDeciding[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
// Keywords that bear on values of one type only.
constexpr std::string_view kObjectWords[] = {"properties", "required", "additionalProperties"};
constexpr std::string_view kArrayWords[] = {"items", "prefixItems", "minItems", "maxItems"};
constexpr std::string_view kStringWords[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kNumberWords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                             "multipleOf"};

std::string step(std::string_view path, std::string_view name) {
  return std::string(path) + "." + std::string(name.substr(0, 64));
}
std::string step(std::string_view path, size_t index) {
  return std::string(path) + "[" + std::to_string(index) + "]";
}

bool is_of_type(JsonView value, std::string_view type) {
  switch (value.type()) {
    case Type::null:
      return type == "null";
    case Type::boolean:
      return type == "boolean";
    case Type::integer:
    case Type::unsigned_integer:
      return type == "integer" || type == "number";
    case Type::number:
      return type == "number" || (type == "integer" && value.integer());
    case Type::string:
      return type == "string";
    case Type::array:
      return type == "array";
    case Type::object:
      return type == "object";
  }
  return false;
}

class Checker {
 public:
  explicit Checker(JsonView root) : root_(root) {}
  Status schema(JsonView value, const std::string& path, JsonWriter& out);
  // After `schema`: references have an end, and do not nest too deeply.
  Status references(const std::string& path);

 private:
  Status names(JsonView value, const std::string& path);
  Status type_of(JsonView value, const std::string& path, std::vector<std::string_view>& types);
  Status deciding(std::string_view word, JsonView schema, const std::string& path, JsonWriter& out);
  Status object(JsonView value, const std::string& path, bool is_only_type, JsonWriter& out);
  Status array(JsonView value, const std::string& path, JsonWriter& out);
  Status text(JsonView value, const std::string& path, JsonWriter& out);
  Status number(JsonView value, const std::string& path, JsonWriter& out);
  Status list(std::string_view word, JsonView value, const std::string& path, JsonWriter& out);
  Status members(std::string_view word, JsonView value, const std::string& path, JsonWriter& out);
  Status definitions(JsonView value, const std::string& path, JsonWriter& out);
  Status counts(JsonView value, const std::string& path, std::string_view low, std::string_view high,
                JsonWriter& out);
  std::optional<JsonView> target(std::string_view reference) const;
  bool leads_back(JsonView value);
  bool is_shallow(JsonView value, int depth);

  enum class Visit : uint8_t { under_way, done };
  const JsonView root_;
  int schemas_ = 0;
  std::map<std::string, Visit> visits_;
  std::set<std::string> followed_;
};

// A JSON Pointer as a URI fragment has it (RFC 6901, section 6), in its parts.
std::vector<std::string> pointer_parts(std::string_view text) {
  std::vector<std::string> parts(1);
  const auto hex = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '/') {
      parts.emplace_back();
      continue;
    }
    if (c == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      c = char(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    }
    parts.back() += c;
  }
  for (std::string& part : parts) {
    for (size_t at = 0; (at = part.find("~1", at)) != part.npos; ++at) part.replace(at, 2, "/");
    for (size_t at = 0; (at = part.find("~0", at)) != part.npos; ++at) part.replace(at, 2, "~");
  }
  return parts;
}

// What a reference leads to, if that is a schema of this document.
std::optional<JsonView> Checker::target(std::string_view reference) const {
  if (reference == "#") return root_;
  if (!reference.starts_with("#/")) return std::nullopt;
  const std::vector<std::string> parts = pointer_parts(reference.substr(2));
  std::optional<JsonView> at = root_;
  for (size_t i = 0; at && i < parts.size(); ++i) {
    const std::string& word = parts[i];
    at = at->is_object() ? at->find(word) : std::nullopt;
    if (!at || word == "items" || word == "additionalProperties") continue;
    if (++i == parts.size()) return std::nullopt;
    if (word == "properties" || word == "$defs" || word == "definitions") {
      at = at->is_object() ? at->find(parts[i]) : std::nullopt;
    } else if (word == "anyOf" || word == "oneOf" || word == "allOf" || word == "prefixItems") {
      const std::string& index = parts[i];
      const bool number =
          !index.empty() && index.size() < 5 && index.find_first_not_of("0123456789") == index.npos;
      const size_t n = number ? size_t(std::stoi(index)) : SIZE_MAX;
      at = at->is_array() && n < at->size() ? std::optional(at->at(n)) : std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  return at;
}

// Whether a value is reached again before anything of an answer would be written.
bool Checker::leads_back(JsonView value) {
  if (!value.is_object()) return false;
  if (const auto ref = value.find("$ref"); ref && ref->string()) {
    const auto next = target(*ref->string());
    if (!next) return false;
    auto [state, is_new] = visits_.try_emplace(std::string(*ref->string()), Visit::under_way);
    if (!is_new) return state->second == Visit::under_way;
    const bool back = leads_back(*next);
    state->second = Visit::done;  // a node of the map: it stays where it is
    return back;
  }
  bool back = false;
  for (const std::string_view word : {"anyOf", "oneOf", "allOf"}) {
    if (const auto options = value.find(word))
      options->each([&](JsonView option) { return !(back = back || leads_back(option)); });
  }
  return back;
}

// How deep a walk gets that follows each reference where it first meets it: the compiler recurses like that.
bool Checker::is_shallow(JsonView value, int depth) {
  if (depth > limits::kSchemaDepth) return false;
  bool shallow = true;
  if (value.is_array()) {
    value.each([&](JsonView item) { return shallow = is_shallow(item, depth + 1); });
  } else if (value.is_object()) {
    if (const auto ref = value.find("$ref"); ref && ref->string()) {
      const auto next = target(*ref->string());
      if (next && followed_.insert(std::string(*ref->string())).second) shallow = is_shallow(*next, depth + 1);
    }
    value.each_member([&](std::string_view name, JsonView item) {
      if (name != "$defs" && name != "definitions") shallow = shallow && is_shallow(item, depth + 1);
      return shallow;
    });
  }
  return shallow;
}

Status Checker::references(const std::string& path) {
  if (!is_shallow(root_, 0)) return member_error("The schema is nested too deeply, references followed.", path);
  Status status;
  const auto look = [&](JsonView value, const std::string& name, const std::string& where) {
    const auto [state, is_new] = visits_.try_emplace(name, Visit::under_way);
    if (is_new && leads_back(value)) status = member_error("refers to itself without an end.", where);
    state->second = Visit::done;
    return status.ok();
  };
  if (!root_.is_object() || !look(root_, "#", path)) return status;
  for (const std::string_view group : {"$defs", "definitions"}) {
    if (const auto all = root_.find(group))
      all->each_member([&](std::string_view name, JsonView value) {
        return look(value, "#/" + std::string(group) + "/" + std::string(name), step(step(path, group), name));
      });
  }
  return status;
}

// Every keyword known, none twice.
Status Checker::names(JsonView value, const std::string& path) {
  Status status;
  SeenNames seen;
  value.each_member([&](std::string_view name, JsonView member) {
    const bool known = among(kAnnotations, name) || among(kDeciding, name) || among(kObjectWords, name) ||
                       among(kArrayWords, name) || among(kStringWords, name) || among(kNumberWords, name) ||
                       name == "type" || name == "$defs" || name == "definitions" ||
                       (name == "uniqueItems" && member.boolean() == false);
    if (!known)
      status = member_error("is a keyword that this server cannot enforce.", step(path, name));
    else if (!seen.add(name).ok())
      status = member_error("is given more than once.", step(path, name));
    return status.ok();
  });
  return status;
}

Status Checker::type_of(JsonView value, const std::string& path, std::vector<std::string_view>& types) {
  const auto type = value.find("type");
  if (!type) {
    // A keyword of one type stands for that type: an answer of another would be valid too, but nobody means it.
    bool object = false, array = false, text = false, number = false;
    value.each_member([&](std::string_view name, JsonView) {
      object |= among(kObjectWords, name), array |= among(kArrayWords, name);
      text |= among(kStringWords, name), number |= among(kNumberWords, name);
      return true;
    });
    if (object + array + text + number > 1)
      return member_error("is needed beside these keywords.", step(path, "type"));
    if (object) types.push_back("object");
    if (array) types.push_back("array");
    if (text) types.push_back("string");
    if (number) types.push_back("number");
    return {};
  }
  const auto add = [&](JsonView item) -> Status {
    const auto name = item.string();
    if (!name || !among(kTypes, *name))
      return member_error("must name a type of JSON, or be an array of such names.", step(path, "type"));
    if (std::find(types.begin(), types.end(), *name) != types.end())
      return member_error("names a type twice.", step(path, "type"));
    types.push_back(*name);
    return {};
  };
  if (!type->is_array()) return add(*type);
  Status status;
  type->each([&](JsonView item) { return (status = add(item)).ok(); });
  if (status.ok() && types.empty()) status = member_error("is an empty array.", step(path, "type"));
  return status;
}

Status Checker::schema(JsonView value, const std::string& path, JsonWriter& out) {
  if (++schemas_ > limits::kSchemas)
    return member_error(fmt::format("The schema has more than {} parts.", limits::kSchemas), path);
  if (value.boolean() == true) {
    out.raw("true");
    return {};
  }
  if (value.boolean() == false) return member_error("is false: no value would be valid.", path);
  if (!value.is_object()) return member_error("must be a JSON Schema: an object.", path);
  if (Status status = names(value, path); !status.ok()) return status;
  std::vector<std::string_view> types;
  if (Status status = type_of(value, path, types); !status.ok()) return status;

  out.begin_object();
  std::string_view decided;
  for (const std::string_view word : kDeciding) {
    if (!value.find(word)) continue;
    if (!decided.empty())
      return member_error(fmt::format("cannot be combined with {} by this server.", decided), step(path, word));
    decided = word;
  }
  Status status;
  if (!decided.empty()) {
    status = deciding(decided, value, path, out);
  } else if (!types.empty()) {
    out.key("type");
    if (types.size() == 1) {
      out.string(types[0]);
    } else {
      out.begin_array();
      for (const std::string_view type : types) out.string(type);
      out.end_array();
    }
    for (const std::string_view type : types) {
      if (!status.ok()) break;
      if (type == "object") status = object(value, path, types.size() == 1, out);
      if (type == "array") status = array(value, path, out);
      if (type == "string") status = text(value, path, out);
      const bool first_of_both =
          type != "integer" || std::find(types.begin(), types.end(), "number") == types.end();
      if ((type == "number" || type == "integer") && first_of_both) status = number(value, path, out);
    }
  }
  if (status.ok()) status = definitions(value, path, out);
  out.end_object();
  return status;
}

Status Checker::definitions(JsonView value, const std::string& path, JsonWriter& out) {
  for (const std::string_view group : {"$defs", "definitions"}) {
    const auto all = value.find(group);
    if (!all) continue;
    if (path.find('[') == std::string::npos && !all->is_object())
      return member_error("must be an object of schemas.", step(path, group));
    if (Status status = members(group, *all, path, out); !status.ok()) return status;
  }
  return {};
}

Status Checker::deciding(std::string_view word, JsonView value, const std::string& path, JsonWriter& out) {
  Status status;
  value.each_member([&](std::string_view name, JsonView) {
    const bool fine = name == word || among(kAnnotations, name) || name == "$defs" || name == "definitions" ||
                      (name == "type" && (word == "enum" || word == "const"));
    if (!fine)
      status = member_error(fmt::format("cannot be combined with {} by this server.", word), step(path, name));
    return status.ok();
  });
  if (!status.ok()) return status;
  const JsonView at = *value.find(word);
  const std::string where = step(path, word);
  if (word == "$ref") {
    const auto name = at.string();
    if (!name) return member_error("must be a string.", where);
    if (!target(*name))
      return member_error(fmt::format("is '{}': no schema inside this one.", name->substr(0, 64)), where);
    out.key(word).string(*name);
    return {};
  }
  if (word == "const" || word == "enum") {
    std::vector<std::string_view> types;
    if (value.find("type")) status = type_of(value, path, types);
    const auto check = [&](JsonView item) {
      const bool fits = types.empty() || std::any_of(types.begin(), types.end(),
                                                     [&](std::string_view t) { return is_of_type(item, t); });
      if (!fits) status = member_error("holds a value that is not of the type beside it.", where);
      return status.ok();
    };
    if (word == "const" && status.ok()) check(at);
    if (word == "enum" && status.ok()) {
      if (!at.is_array() || at.size() == 0)
        return member_error("must be an array of at least one value.", where);
      if (at.size() > size_t(limits::kSchemaEnum))
        return member_error(fmt::format("holds more than {} values.", limits::kSchemaEnum), where);
      at.each([&](JsonView item) { return check(item); });
    }
    if (status.ok()) out.key(word).raw(at.text());
    return status;
  }
  if (word == "allOf" && at.is_array() && at.size() > 1)
    return member_error("holds more than one schema, which this server cannot combine.", where);
  return list(word, at, path, out);
}

Status Checker::list(std::string_view word, JsonView value, const std::string& path, JsonWriter& out) {
  const std::string where = step(path, word);
  if (!value.is_array() || value.size() == 0)
    return member_error("must be an array of at least one schema.", where);
  Status status;
  size_t i = 0;
  out.key(word).begin_array();
  value.each([&](JsonView item) { return (status = schema(item, step(where, i++), out)).ok(); });
  out.end_array();
  return status;
}

Status Checker::members(std::string_view word, JsonView value, const std::string& path, JsonWriter& out) {
  const std::string where = step(path, word);
  if (!value.is_object()) return member_error("must be an object of schemas.", where);
  Status status;
  SeenNames seen;
  out.key(word).begin_object();
  value.each_member([&](std::string_view name, JsonView item) {
    if (!seen.add(name).ok()) {
      status = member_error("is given more than once.", step(where, name));
    } else {
      out.key(name);
      status = schema(item, step(where, name), out);
    }
    return status.ok();
  });
  out.end_object();
  return status;
}

Status Checker::object(JsonView value, const std::string& path, bool is_only_type, JsonWriter& out) {
  const auto properties = value.find("properties");
  if (properties) {
    if (Status status = members("properties", *properties, path, out); !status.ok()) return status;
  }
  const auto more = value.find("additionalProperties");
  if (const auto required = value.find("required")) {
    const std::string where = step(path, "required");
    if (!required->is_array()) return member_error("must be an array of property names.", where);
    Status status;
    required->each([&](JsonView name) {
      if (!name.string())
        status = member_error("must be an array of property names.", where);
      else if (!properties || !properties->find(*name.string()))
        status = member_error(
            fmt::format("names '{}', which properties does not describe.", name.string()->substr(0, 64)),
            where);
      return status.ok();
    });
    if (!status.ok()) return status;
    out.key("required").raw(required->text());
  }
  if (more && more->boolean()) {
    out.key("additionalProperties").boolean(*more->boolean());
  } else if (more) {
    out.key("additionalProperties");
    return schema(*more, step(path, "additionalProperties"), out);
  } else if (!properties) {
    out.key("additionalProperties").boolean(true);
  }
  return {};
}

Status Checker::array(JsonView value, const std::string& path, JsonWriter& out) {
  const auto first = value.find("prefixItems"), items = value.find("items");
  if (first) {
    if (Status status = list("prefixItems", *first, path, out); !status.ok()) return status;
  }
  out.key("items");
  if (items && items->boolean() == false && first) {
    out.boolean(false);
  } else if (items) {
    if (Status status = schema(*items, step(path, "items"), out); !status.ok()) return status;
  } else {
    out.boolean(true);
  }
  return counts(value, path, "minItems", "maxItems", out);
}

Status Checker::counts(JsonView value, const std::string& path, std::string_view low, std::string_view high,
                       JsonWriter& out) {
  int64_t least = 0;
  for (const std::string_view word : {low, high}) {
    const auto at = value.find(word);
    if (!at) continue;
    const auto count = at->integer();
    if (!count || *count < 0 || *count > limits::kSchemaCount)
      return member_error(fmt::format("must be an integer from 0 to {}.", limits::kSchemaCount),
                          step(path, word));
    if (word == high && *count < least)
      return member_error(fmt::format("is less than {}.", low), step(path, word));
    if (word == low) least = *count;
    out.key(word).integer(*count);
  }
  return {};
}

Status Checker::text(JsonView value, const std::string& path, JsonWriter& out) {
  const auto pattern = value.find("pattern"), format = value.find("format");
  if (pattern && !pattern->string()) return member_error("must be a string.", step(path, "pattern"));
  if (format && (!format->string() || !among(kFormats, *format->string())))
    return member_error("is not a format that this server knows.", step(path, "format"));
  if (pattern && format)
    return member_error("cannot be combined with pattern by this server.", step(path, "format"));
  for (const char* word : {"minLength", "maxLength"}) {
    if ((pattern || format) && value.find(word))
      return member_error("cannot be combined with pattern or format by this server.", step(path, word));
  }
  if (pattern) out.key("pattern").string(*pattern->string());
  if (format) out.key("format").string(*format->string());
  return counts(value, path, "minLength", "maxLength", out);
}

Status Checker::number(JsonView value, const std::string& path, JsonWriter& out) {
  for (const std::string_view word : kNumberWords) {
    const auto at = value.find(word);
    if (!at) continue;
    if (!at->number()) return member_error("must be a number.", step(path, word));
    out.key(word).raw(at->text());
  }
  return {};
}

}  // namespace

Result<std::string> checked_json_schema(JsonView schema, std::string_view field) {
  std::string text;
  JsonWriter out(text);
  Checker checker(schema);
  if (Status status = checker.schema(schema, std::string(field), out); !status.ok()) return status.error();
  if (Status status = checker.references(std::string(field)); !status.ok()) return status.error();
  return text;
}

}  // namespace sluice
