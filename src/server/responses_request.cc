#include "server/responses_request.h"

#include "base/log.h"
#include "server/grammar_members.h"
#include "server/limits.h"
#include "server/message_writer.h"

namespace sluice {

namespace {

using Bounds = RequestBounds;

struct Draft {
  GenerationOptions options;
  ResponsesRequest request;
  MessageWriter input;
  bool has_input = false;
};

Status unsupported() {
  return Error{ErrorCode::kUnsupported, "is not supported by this server; leave it out.", ""};
}

// Text, or parts of text, under any of the names that they have here.
Status read_texts(JsonView value, const std::string& where, std::vector<std::string>& out) {
  if (const auto text = value.string()) {
    out.emplace_back(*text);
    return {};
  }
  if (!value.is_array()) return member_error("must be a string or an array of parts.", where);
  if (value.size() == 0) return member_error("is an empty array.", where);
  if (value.size() > size_t(limits::kParts))
    return member_error(fmt::format("has more than {} parts.", limits::kParts), where);
  Status status;
  int i = 0;
  value.each([&](JsonView part) {
    const std::string at = where + "[" + std::to_string(i++) + "]";
    const auto type = part.find("type"), text = part.find("text");
    const auto kind = type ? type->string() : std::nullopt;
    if (kind != "input_text" && kind != "output_text" && kind != "text")
      status =
          member_error("must be \"input_text\" or \"output_text\": this model reads text only.", at + ".type");
    else if (!text || !text->string())
      status = member_error("is required and must be a string.", at + ".text");
    else
      out.emplace_back(*text->string());
    return status.ok();
  });
  return status;
}

std::optional<std::string_view> text_member(JsonView item, const char* name) {
  const auto member = item.find(name);
  return member ? member->string() : std::nullopt;
}

Status add_message(JsonView item, const std::string& where, Draft& d) {
  const auto role = text_member(item, "role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    return member_error("must be user, assistant, system or developer.", where + ".role");
  const auto content = item.find("content");
  if (!content)
    return member_error("is required and must be a string or an array of parts.", where + ".content");
  std::vector<std::string> texts;
  if (Status status = read_texts(*content, where + ".content", texts); !status.ok()) return status;
  // An answer after thoughts is one turn with them.
  if (role == "assistant" && d.input.has_only_thoughts())
    d.input.continue_turn("assistant");
  else
    d.input.new_turn(role == "developer" ? "system" : *role);
  for (const std::string& text : texts) d.input.add_text(text);
  return {};
}

// Calls belong to the assistant's message before them, where there is one.
Status add_call(JsonView item, const std::string& where, Draft& d) {
  for (const char* name : {"call_id", "name", "arguments"}) {
    if (!text_member(item, name)) return member_error("is required and must be a string.", where + "." + name);
  }
  d.input.continue_turn("assistant");
  d.request.chat.has_calls = true;
  d.input.add_call(*text_member(item, "call_id"), *text_member(item, "name"), *text_member(item, "arguments"));
  return {};
}

Status add_call_output(JsonView item, const std::string& where, Draft& d) {
  const auto id = text_member(item, "call_id");
  const auto output = item.find("output");
  if (!id) return member_error("is required and must be a string.", where + ".call_id");
  if (!output) return member_error("is required and must be a string or an array of parts.", where + ".output");
  std::vector<std::string> texts;
  if (Status status = read_texts(*output, where + ".output", texts); !status.ok()) return status;
  d.input.new_turn("tool");
  d.request.chat.has_calls = true;
  d.input.add_result(*id, texts);
  return {};
}

// Thoughts belong to the assistant's turn that they begin. A summary is for people; what is encrypted was by
// another server.
Status add_reasoning(JsonView item, const std::string& where, Draft& d) {
  const auto content = item.find("content");
  if (!content || content->is_null()) return {};
  if (!content->is_array()) return member_error("must be an array of parts.", where + ".content");
  Status status;
  int i = 0;
  d.input.new_turn("assistant");
  content->each([&](JsonView part) {
    const auto text = text_member(part, "text");
    if (!text)
      status =
          member_error("is required and must be a string.", where + ".content[" + std::to_string(i) + "].text");
    else
      d.input.add_thoughts(*text);
    ++i;
    return status.ok();
  });
  return status;
}

Status add_item(JsonView item, const std::string& where, Draft& d) {
  if (!item.is_object()) return member_error("must be an object.", where);
  const auto type = item.find("type");
  const std::string_view kind = type ? type->string().value_or("") : std::string_view("message");
  if (kind == "message") return add_message(item, where, d);
  if (kind == "function_call") return add_call(item, where, d);
  if (kind == "function_call_output") return add_call_output(item, where, d);
  if (kind == "reasoning") return add_reasoning(item, where, d);
  return member_error("must be message, function_call, function_call_output or reasoning.", where + ".type");
}

Status read_input(JsonView value, Draft& d, const Bounds&) {
  d.has_input = true;
  if (const auto text = value.string()) {
    d.input.new_turn("user");
    d.input.add_text(*text);
    return {};
  }
  if (!value.is_array()) return member_error("must be a string or an array of items.");
  if (value.size() == 0) return member_error("must hold at least one item.");
  if (value.size() > size_t(limits::kMessages))
    return member_error(fmt::format("holds more than {} items.", limits::kMessages));
  Status status;
  int i = 0;
  value.each([&](JsonView item) {
    status = add_item(item, "input[" + std::to_string(i++) + "]", d);
    return status.ok();
  });
  return status;
}

Status read_instructions(JsonView value, Draft& d, const Bounds&) {
  Status status = read_text(value, d.request.instructions_text);
  if (status.ok()) d.request.instructions = value.text();
  return status;
}

Status read_max_output_tokens(JsonView value, Draft& d, const Bounds&) {
  int tokens = 0;
  Status status = read_integer(value, 1, INT32_MAX, tokens);
  if (status.ok()) d.options.max_tokens = tokens;
  return status;
}

Status read_metadata(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_object()) return member_error("must be an object.");
  if (value.size() > 16) return member_error("has more than 16 members.");
  Status status;
  value.each_member([&](std::string_view, JsonView item) {
    if (!item.string()) status = member_error("must hold strings only.");
    return status.ok();
  });
  if (status.ok()) d.request.metadata = value.text();
  return status;
}

Status read_user(JsonView value, Draft& d, const Bounds&) {
  if (!value.string()) return member_error("must be a string.");
  d.request.user = value.text();
  return {};
}

Status read_text_member(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_object()) return member_error("must be an object.");
  Status status;
  value.each_member([&](std::string_view name, JsonView member) {
    if (member.is_null()) return true;
    if (name != "format") return note_ignored("text." + std::string(name), d.options), true;
    status = read_flat_format(member, "text.format", d.options);
    d.request.text_format = member.text();
    return status.ok();
  });
  return status;
}

Status read_functions(JsonView value, Draft& d, const Bounds&) {
  d.request.tools = value.text();
  return read_flat_tools(value, {"function", true, "parameters", false}, d.request.chat.tools, d.options);
}

Status read_choice(JsonView value, Draft& d, const Bounds&) {
  ToolOptions& tools = d.request.chat.tools;
  d.request.tool_choice = value.text();
  if (!value.is_object()) return read_tool_choice(value, tools);
  if (text_member(value, "type") != "function")
    return member_error("must be \"function\".", "tool_choice.type");
  const auto name = text_member(value, "name");
  if (!name) return member_error("is required and must be a string.", "tool_choice.name");
  tools.choice = ToolChoice::named;
  tools.named = *name;
  tools.named_field = "tool_choice.name";
  return {};
}

Status read_reasoning(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_object()) return member_error("must be an object.");
  if (value.size() > 0) note_ignored("reasoning", d.options);
  return {};
}

Status read_include(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_array()) return member_error("must be an array.");
  if (value.size() > 0) note_ignored("include", d.options);
  return {};
}

Status only_false(JsonView value, Draft&, const Bounds&) {
  return value.boolean() == false ? Status() : unsupported();
}
Status only_zero(JsonView value, Draft&, const Bounds&) {
  return value.number() == 0.0 ? Status() : unsupported();
}
Status only_disabled(JsonView value, Draft&, const Bounds&) {
  return value.string() == "disabled" ? Status() : unsupported();
}
Status refuse(JsonView, Draft&, const Bounds&) { return unsupported(); }

// Without effect here: what is counted are calls of tools that OpenAI's servers run; no event is obfuscated.
constexpr char kMaxToolCalls[] = "max_tool_calls", kStreamOptions[] = "stream_options";
template <const char* name>
Status ignore(JsonView, Draft& d, const Bounds&) {
  note_ignored(name, d.options);
  return {};
}

constexpr Member<Draft> kMembers[] = {
    {"input", read_input},
    {"instructions", read_instructions},
    {"previous_response_id",
     [](JsonView v, Draft& d, const Bounds&) { return read_text(v, d.request.previous); }},
    {"store", [](JsonView v, Draft& d, const Bounds&) { return read_boolean(v, d.request.store); }},
    {"max_output_tokens", read_max_output_tokens},
    {"metadata", read_metadata},
    {"user", read_user},
    {"text", read_text_member},
    {"tools", read_functions},
    {"tool_choice", read_choice},
    {"parallel_tool_calls",
     [](JsonView v, Draft& d, const Bounds&) { return read_boolean(v, d.request.chat.tools.parallel); }},
    {"reasoning", read_reasoning},
    {"include", read_include},
    {"background", only_false},
    {"top_logprobs", only_zero},
    {"truncation", only_disabled},
    {"max_tool_calls", ignore<kMaxToolCalls>},
    {"stream_options", ignore<kStreamOptions>},
    {"conversation", refuse},
    {"prompt", refuse},
    {"n", refuse},
    {"return_token_ids", refuse},
    {"return_tokens_as_token_ids", refuse},
};

}  // namespace

std::string ResponsesRequest::messages_of(std::string_view before) const {
  MessageWriter writer;
  if (!instructions_text.empty()) {
    writer.new_turn("system");
    writer.add_text(instructions_text);
  }
  std::string out = "[" + writer.take();
  for (const std::string_view part : {before, std::string_view(input)}) {
    if (out.size() > 1 && !part.empty()) out += ',';
    out += part;
  }
  return out + "]";
}

Result<ResponsesRequest> parse_responses_request(std::string_view body, const RequestBounds& bounds) {
  auto document = JsonDocument::parse(body);
  if (!document.ok()) return document.error();
  Draft d;
  if (Status status = read_members<Draft>(document->root(), kMembers, d, bounds); !status.ok())
    return status.error();
  if (Status status = settle_tools(d.request.chat.tools, d.options); !status.ok()) return status.error();
  if (!d.has_input) return member_error("is required.", "input");
  d.request.input = d.input.take();
  if (d.request.input.empty()) return member_error("holds no text.", "input");
  d.request.chat.options = std::move(d.options);
  return std::move(d.request);
}

}  // namespace sluice
