#include "server/tools.h"

#include <algorithm>
#include <functional>

#include "base/log.h"
#include "server/json_schema.h"
#include "server/json_writer.h"
#include "server/limits.h"

namespace sluice {
namespace {

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= limits::kToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                  c == '-' || c == '.';
         });
}

std::optional<JsonView> given(JsonView value, std::string_view name) {
  const auto found = value.is_object() ? value.find(name) : std::nullopt;
  return found && !found->is_null() ? found : std::nullopt;
}

// Which of two counts differs between this reader and a template's.
Status no_member_twice(JsonView object, const std::string& where) {
  SeenNames seen;
  Status status;
  if (object.size() > size_t(limits::kToolMembers))
    return member_error(fmt::format("has more than {} members.", limits::kToolMembers), where);
  object.each_member([&](std::string_view name, JsonView) {
    status = seen.add(name);
    if (!status.ok())
      status = member_error(status.error().message, where + "." + std::string(name.substr(0, 64)));
    return status.ok();
  });
  return status;
}

// A function: name, description, strict, and its parameters under the name `schema`.
Status add_function(JsonView function, const std::string& at, const char* schema, ToolOptions& options) {
  if (Status status = no_member_twice(function, at); !status.ok()) return status;
  const auto name = given(function, "name");
  if (!name || !name->string() || !is_name(*name->string()))
    return member_error(
        fmt::format("must be 1 to {} letters, digits, '_', '-' or '.'.", limits::kToolNameBytes), at + ".name");
  Tool tool;
  tool.name = *name->string();
  for (const Tool& other : options.tools)
    if (other.name == tool.name) return member_error("is the name of another tool too.", at + ".name");
  if (const auto description = given(function, "description"); description && !description->string())
    return member_error("must be a string.", at + ".description");
  if (const auto strict = given(function, "strict")) {
    if (!strict->boolean()) return member_error("must be a boolean.", at + ".strict");
    tool.strict = *strict->boolean();
  }
  tool.parameters = R"({"type":"object","additionalProperties":true})";
  if (const auto parameters = given(function, schema)) {
    const std::string where = at + "." + schema;
    if (!parameters->is_object()) return member_error("must be a JSON Schema: an object.", where);
    if (const auto type = given(*parameters, "type"); type && type->string() != "object")
      return member_error("must be \"object\": arguments have names.", where + ".type");
    auto checked = checked_json_schema(*parameters, where);
    if (checked.ok())
      tool.parameters = *checked == "{}" ? tool.parameters : std::move(*checked);
    else
      tool.unenforceable = checked.error();
  }
  options.tools.push_back(std::move(tool));
  return {};
}

Status read_tool(JsonView value, const std::string& where, ToolOptions& options) {
  const auto type = given(value, "type");
  if (!type || type->string() != "function") return member_error("must be \"function\".", where + ".type");
  const auto function = given(value, "function");
  if (!function || !function->is_object())
    return member_error("is required and must be an object.", where + ".function");
  return add_function(*function, where + ".function", "parameters", options);
}

// `json`: the elements of the array as templates know them, which is chat's form.
Status read_flat_tool(JsonView value, const std::string& where, const FlatTools& form, ToolOptions& options,
                      GenerationOptions& ignored, JsonWriter& json) {
  if (!value.is_object()) return member_error("must be an object.", where);
  const auto type = given(value, "type");
  if (type ? type->string() != form.type : form.needs_type)
    return member_error(fmt::format("must be \"{}\": this server runs no tools of its own.", form.type),
                        where + ".type");
  if (form.needs_schema && !given(value, form.schema))
    return member_error("is required and must be an object.", where + "." + form.schema);
  if (Status status = add_function(value, where, form.schema, options); !status.ok()) return status;
  json.begin_object().key("type").string("function").key("function").begin_object();
  value.each_member([&](std::string_view name, JsonView member) {
    if (name == "type" || member.is_null()) return true;
    if (name == form.schema)
      json.key("parameters").raw(member.text());
    else if (name == "name" || name == "description" || name == "strict")
      json.key(name).raw(member.text());
    else
      note_ignored("tools." + std::string(name), ignored);
    return true;
  });
  json.end_object().end_object();
  return {};
}

Status each_tool(JsonView value, const std::function<Status(JsonView, const std::string& where)>& read) {
  if (!value.is_array()) return member_error("must be an array of tools.");
  if (value.size() > size_t(limits::kTools))
    return member_error(fmt::format("holds more than {} tools.", limits::kTools));
  Status status;
  size_t i = 0;
  value.each([&](JsonView item) {
    status = read(item, "tools[" + std::to_string(i++) + "]");
    return status.ok();
  });
  return status;
}

}  // namespace

Status read_tools(JsonView value, ToolOptions& options) {
  Status status = each_tool(
      value, [&](JsonView item, const std::string& where) { return read_tool(item, where, options); });
  if (status.ok()) options.tools_json = value.text();
  return status;
}

Status read_flat_tools(JsonView value, const FlatTools& form, ToolOptions& options,
                       GenerationOptions& ignored) {
  JsonWriter json(options.tools_json);
  json.begin_array();
  Status status = each_tool(value, [&](JsonView item, const std::string& where) {
    return read_flat_tool(item, where, form, options, ignored, json);
  });
  json.end_array();
  return status;
}

// "none", "auto", "required", or {"type":"function","function":{"name"}}.
Status read_tool_choice(JsonView value, ToolOptions& options) {
  if (value.string() == "auto") {
    options.choice = ToolChoice::automatic;
  } else if (value.string() == "none") {
    options.choice = ToolChoice::none;
  } else if (value.string() == "required" || value.string() == "any") {
    options.choice = ToolChoice::required;
  } else if (value.is_object()) {
    const auto type = given(value, "type");
    const auto function = given(value, "function");
    const auto name = function ? given(*function, "name") : std::nullopt;
    if (!type || type->string() != "function") return member_error("must be \"function\".", "tool_choice.type");
    if (!name || !name->string())
      return member_error("is required and must be a string.", "tool_choice.function.name");
    options.choice = ToolChoice::named;
    options.named = *name->string();
  } else {
    return member_error("must be \"none\", \"auto\", \"required\", or name a function.");
  }
  return {};
}

Status settle_tools(const ToolOptions& tools, GenerationOptions& options) {
  const bool forces = tools.choice == ToolChoice::required || tools.choice == ToolChoice::named;
  if (forces && tools.tools.empty()) return member_error("needs tools.", "tool_choice");
  const auto is_named = [&](const Tool& t) { return t.name == tools.named; };
  if (tools.choice == ToolChoice::named && std::none_of(tools.tools.begin(), tools.tools.end(), is_named))
    return member_error("is not the name of one of the tools.", std::string(tools.named_field));
  if (tools.active() && options.grammar)
    return member_error("cannot be given together with tools by this server, unless tool_choice is \"none\".",
                        options.grammar_field);
  // With "auto" the model writes calls as it likes, so a promise to hold them to the schema is not kept.
  const auto is_strict = [](const Tool& t) { return t.strict; };
  if (tools.choice == ToolChoice::automatic && std::any_of(tools.tools.begin(), tools.tools.end(), is_strict))
    note_ignored("tools.strict", options);
  if (forces) {
    for (const Tool& tool : tools.tools)
      if (!tool.unenforceable.message.empty() && (tools.choice == ToolChoice::required || is_named(tool)))
        return tool.unenforceable;
  }
  return {};
}

GrammarSource forced_calls(const ToolOptions& tools, ToolFormat format) {
  const bool llama = format == ToolFormat::llama3, mistral = format == ToolFormat::mistral;
  GrammarSource source{GrammarSource::Kind::kStructuralTag, ""};
  JsonWriter w(source.text);
  w.begin_object().key("type").string("structural_tag").key("format");
  if (mistral) {
    w.begin_object().key("type").string("sequence").key("elements").begin_array();
    w.begin_object().key("type").string("const_string").key("value").string("[").end_object();
  }
  w.begin_object().key("type").string("tags_with_separator").key("tags").begin_array();
  for (const Tool& tool : tools.tools) {
    if (tools.choice == ToolChoice::named && tool.name != tools.named) continue;
    // A name needs no escapes.
    w.begin_object().key("type").string("tag").key("begin").string(
        fmt::format("{{\"name\": \"{}\", \"{}\": ", tool.name, llama ? "parameters" : "arguments"));
    w.key("content").begin_object().key("type").string("json_schema").key("json_schema").raw(tool.parameters);
    w.key("max_whitespace_cnt").integer(8).end_object();
    w.key("end").string(llama || mistral ? "}" : "}\n</tool_call>").end_object();
  }
  // Between hermes calls stands the marker of the next: as text, which a vocabulary can always spell.
  w.end_array().key("separator").string(llama ? "; " : mistral ? ", " : "\n<tool_call>\n");
  const bool one = !tools.parallel || tools.choice == ToolChoice::named;
  w.key("at_least_one").boolean(true).key("stop_after_first").boolean(one).end_object();
  if (mistral) {
    w.begin_object().key("type").string("const_string").key("value").string("]").end_object();
    w.end_array().end_object();
  }
  w.end_object();
  return source;
}

Status check_tool_calls(JsonView calls, const std::string& where) {
  if (!calls.is_array()) return member_error("must be an array of tool calls.", where);
  if (calls.size() > size_t(limits::kTools))
    return member_error(fmt::format("holds more than {} calls.", limits::kTools), where);
  Status status;
  size_t i = 0;
  calls.each([&](JsonView call) {
    const std::string at = where + "[" + std::to_string(i++) + "]";
    const auto function = given(call, "function");
    const auto name = function ? given(*function, "name") : std::nullopt;
    const auto arguments = function ? given(*function, "arguments") : std::nullopt;
    if (!function || !function->is_object())
      status = member_error("is required and must be an object.", at + ".function");
    else if (!name || !name->string())
      status = member_error("is required and must be a string.", at + ".function.name");
    else if (arguments && !arguments->string() && !arguments->is_object())
      status = member_error("must be a string that holds a JSON object.", at + ".function.arguments");
    return status.ok();
  });
  return status;
}

namespace {

// The text of a content: a string, or its text parts.
std::string text_of(std::optional<JsonView> content) {
  std::string out;
  if (!content) return out;
  if (const auto text = content->string()) return std::string(*text);
  content->each([&](JsonView part) {
    if (const auto text = given(part, "text"); text && text->string())
      out += (out.empty() ? "" : "\n") + std::string(*text->string());
    return true;
  });
  return out;
}

std::string tools_prompt(std::string_view tools_json) {
  std::string out = "You can call these functions. Each is described by a line of JSON:\n<tools>\n";
  if (auto document = JsonDocument::parse(tools_json); document.ok()) {
    document->root().each([&](JsonView tool) {
      out += tool.text() + "\n";
      return true;
    });
  }
  return out +
         "</tools>\nTo call one, answer with a JSON object of its name and arguments inside these tags, one "
         "pair of "
         "tags per call:\n<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"ARGUMENT\": "
         "\"VALUE\"}}\n</tool_call>";
}

std::string calls_as_text(JsonView calls) {
  std::string out;
  calls.each([&](JsonView call) {
    const auto function = given(call, "function");
    const auto name = function ? given(*function, "name") : std::nullopt;
    const auto arguments = function ? given(*function, "arguments") : std::nullopt;
    std::string text = "{}";
    if (arguments) {
      // The text of an object stays as it is; what is not one is kept as a string.
      text = arguments->string() ? std::string(*arguments->string()) : arguments->text();
      if (text.empty()) text = "{}";
      if (!JsonDocument::parse(text).ok())
        text.clear(), append_json_string(text, arguments->string().value_or(""));
    }
    std::string object;
    JsonWriter w(object);
    w.begin_object()
        .key("name")
        .string(name ? name->string().value_or("") : "")
        .key("arguments")
        .raw(text)
        .end_object();
    out += (out.empty() ? "" : "\n") + std::string("<tool_call>\n") + object + "\n</tool_call>";
    return true;
  });
  return out;
}

}  // namespace

std::string tools_as_text(std::string_view messages_json, std::string_view tools_json) {
  auto document = JsonDocument::parse(messages_json);
  if (!document.ok()) return std::string(messages_json);
  std::string out;
  JsonWriter w(out);
  const auto message = [&](std::string_view role, const std::string& text) {
    w.begin_object().key("role").string(role).key("content").string(text).end_object();
  };
  w.begin_array();
  std::string prompt = tools_json.empty() ? "" : tools_prompt(tools_json);
  std::string results;  // of tool messages in a row, which become one of the user
  const auto end_results = [&] {
    if (!results.empty()) message("user", results);
    results.clear();
  };
  bool first = true;
  document->root().each([&](JsonView item) {
    const std::string role(item.find("role")->string().value_or(""));
    const std::string text = text_of(given(item, "content"));
    if (role == "tool" || role == "function") {
      results += (results.empty() ? "" : "\n") + std::string("<tool_response>\n") + text + "\n</tool_response>";
      if (first && !prompt.empty()) message("system", prompt);
    } else {
      end_results();
      auto calls = given(item, "tool_calls");
      if (calls && calls->size() == 0) calls.reset();
      if (first && !prompt.empty() && role == "system") {
        message("system", text.empty() ? prompt : text + "\n\n" + prompt);
      } else {
        if (first && !prompt.empty()) message("system", prompt);
        if (calls)
          message(role, text.empty() ? calls_as_text(*calls) : text + "\n" + calls_as_text(*calls));
        else
          w.raw(item.text());
      }
    }
    first = false;
    return true;
  });
  end_results();
  w.end_array();
  return out;
}

}  // namespace sluice
