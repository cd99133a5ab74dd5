#include "server/messages_request.h"

#include "base/log.h"
#include "server/grammar_members.h"
#include "server/limits.h"
#include "server/message_writer.h"

namespace sluice {

namespace {

using Bounds = RequestBounds;

struct Draft {
  GenerationOptions options;
  std::vector<std::string> system;
  MessageWriter messages;  // without the system's
  std::string template_arguments;
  ToolOptions tools;
  bool has_messages = false, has_calls = false;
  std::string unanswered;  // the path of a call in the last message; empty: there is none
};

std::string at(const std::string& where, const char* member) { return where + "." + member; }

Status wanted(const char* what, const std::string& where) { return member_error(what, where); }

// A string, or text blocks.
Status read_text_blocks(JsonView value, const std::string& where, GenerationOptions& options,
                        std::vector<std::string>& out) {
  if (const auto text = value.string()) {
    out.emplace_back(*text);
    return {};
  }
  if (!value.is_array()) return wanted("must be a string or an array of text blocks.", where);
  if (value.size() > size_t(limits::kParts))
    return member_error(fmt::format("has more than {} blocks.", limits::kParts), where);
  Status status;
  int i = 0;
  value.each([&](JsonView block) {
    const std::string here = where + "[" + std::to_string(i++) + "]";
    const auto type = block.find("type");
    const auto text = block.find("text");
    if (!type || type->string() != "text")
      status = wanted("must be \"text\": this model reads text only.", at(here, "type"));
    else if (!text || !text->string())
      status = wanted("is required and must be a string.", at(here, "text"));
    else
      out.emplace_back(*text->string());
    if (block.find("cache_control")) note_ignored("cache_control", options);
    return status.ok();
  });
  return status;
}

Status add_call(JsonView block, const std::string& where, Draft& d) {
  const auto id = block.find("id"), name = block.find("name"), input = block.find("input");
  if (!id || !id->string()) return wanted("is required and must be a string.", at(where, "id"));
  if (!name || !name->string()) return wanted("is required and must be a string.", at(where, "name"));
  if (!input || !input->is_object()) return wanted("is required and must be an object.", at(where, "input"));
  d.has_calls = true;
  d.unanswered = where;
  d.messages.add_call(*id->string(), *name->string(), input->text());
  return {};
}

// Results come before what the user says besides: they answer the turn before this one. Templates know no mark
// of a failed call, so its text says that it failed.
Status add_result(JsonView block, const std::string& where, Draft& d) {
  const auto id = block.find("tool_use_id"), content = block.find("content");
  if (!id || !id->string()) return wanted("is required and must be a string.", at(where, "tool_use_id"));
  std::vector<std::string> texts;
  if (content && !content->is_null()) {
    if (Status status = read_text_blocks(*content, at(where, "content"), d.options, texts); !status.ok())
      return status;
  }
  if (const auto failed = block.find("is_error"); failed && !failed->is_null()) {
    if (!failed->boolean()) return wanted("must be a boolean.", at(where, "is_error"));
    if (*failed->boolean()) texts.insert(texts.begin(), "Error:");
  }
  d.has_calls = true;
  d.messages.add_result(*id->string(), texts);
  return {};
}

Status add_block(JsonView block, bool assistant, const std::string& where, Draft& d) {
  const auto type = block.is_object() ? block.find("type") : std::nullopt;
  if (!type || !type->string()) return wanted("must be an object with a type.", where);
  if (block.find("cache_control")) note_ignored("cache_control", d.options);
  const std::string_view kind = *type->string();
  if (kind == "text") {
    const auto text = block.find("text");
    if (!text || !text->string()) return wanted("is required and must be a string.", at(where, "text"));
    d.messages.add_text(*text->string());
    return {};
  }
  if (assistant && kind == "thinking") {
    const auto text = block.find("thinking");
    if (!text || !text->string()) return wanted("is required and must be a string.", at(where, "thinking"));
    d.messages.add_thoughts(*text->string());
    return {};
  }
  // Sealed by another server.
  if (assistant && kind == "redacted_thinking") return {};
  if (assistant && kind == "tool_use") return add_call(block, where, d);
  if (!assistant && kind == "tool_result") return add_result(block, where, d);
  return wanted(
      "must be \"text\", \"tool_use\" or \"thinking\" of the assistant, or \"tool_result\" of the user: this "
      "model "
      "reads text only.",
      at(where, "type"));
}

Status add_message(JsonView message, const std::string& where, Draft& d) {
  if (!message.is_object()) return wanted("must be an object with role and content.", where);
  const auto role = message.find("role");
  if (!role || (role->string() != "user" && role->string() != "assistant"))
    return wanted("must be \"user\" or \"assistant\"; a system prompt is the member 'system'.",
                  at(where, "role"));
  const auto content = message.find("content");
  if (!content || content->is_null())
    return wanted("is required and must be a string or an array of blocks.", at(where, "content"));
  if (role->string() == "user") d.unanswered.clear();
  d.messages.continue_turn(*role->string());  // consecutive turns of one role are one, as Anthropic has it
  const std::string here = at(where, "content");
  if (const auto text = content->string()) {
    d.messages.add_text(*text);
    return {};
  }
  if (!content->is_array()) return wanted("must be a string or an array of blocks.", here);
  if (content->size() == 0) return wanted("is an empty array.", here);
  if (content->size() > size_t(limits::kParts))
    return member_error(fmt::format("has more than {} blocks.", limits::kParts), here);
  Status status;
  int i = 0;
  content->each([&](JsonView block) {
    status = add_block(block, role->string() == "assistant", here + "[" + std::to_string(i++) + "]", d);
    return status.ok();
  });
  return status;
}

Status read_messages(JsonView value, Draft& d, const Bounds&) {
  d.has_messages = true;
  return each_message(
      value, [&](JsonView message, const std::string& where) { return add_message(message, where, d); });
}

Status read_stop_sequences(JsonView value, Draft& d, const Bounds& bounds) {
  if (!value.is_array()) return member_error("must be an array of strings.");
  return *read_shared_member("stop", value, d.options, bounds);
}

// Templates of models that can think with and without take this argument.
Status read_thinking(JsonView value, Draft& d, const Bounds&) {
  const auto type = value.is_object() ? value.find("type") : std::nullopt;
  const auto word = type ? type->string() : std::nullopt;
  if (word != "enabled" && word != "disabled" && word != "adaptive")
    return member_error("must be \"enabled\", \"disabled\" or \"adaptive\".", "thinking.type");
  if (value.find("budget_tokens")) note_ignored("thinking.budget_tokens", d.options);
  if (word != "adaptive")
    d.template_arguments = word == "enabled" ? R"({"enable_thinking":true})" : R"({"enable_thinking":false})";
  return {};
}

Status read_tool_choice_object(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_object()) return member_error("must be an object with a type.");
  const auto type = value.find("type"), name = value.find("name"),
             alone = value.find("disable_parallel_tool_use");
  if (alone && !alone->is_null()) {
    if (!alone->boolean()) return wanted("must be a boolean.", "tool_choice.disable_parallel_tool_use");
    d.tools.parallel = !*alone->boolean();
  }
  const auto word = type ? type->string() : std::nullopt;
  if (word == "auto") {
    d.tools.choice = ToolChoice::automatic;
  } else if (word == "any") {
    d.tools.choice = ToolChoice::required;
  } else if (word == "none") {
    d.tools.choice = ToolChoice::none;
  } else if (word == "tool") {
    if (!name || !name->string()) return wanted("is required and must be a string.", "tool_choice.name");
    d.tools.choice = ToolChoice::named;
    d.tools.named = *name->string();
    d.tools.named_field = "tool_choice.name";
  } else {
    return wanted("must be \"auto\", \"any\", \"tool\" or \"none\".", "tool_choice.type");
  }
  return {};
}

Status read_output_config(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_object()) return member_error("must be an object.");
  Status status;
  value.each_member([&](std::string_view name, JsonView member) {
    if (member.is_null()) return true;
    if (name != "format") return note_ignored("output_config." + std::string(name), d.options), true;
    status = read_flat_format(member, "output_config.format", d.options);
    return status.ok();
  });
  return status;
}

Status refuse(JsonView, Draft&, const Bounds&) {
  return Error{ErrorCode::kUnsupported, "is not supported by this server; leave it out.", ""};
}

Status ignore_metadata(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_object()) return member_error("must be an object.");
  note_ignored("metadata", d.options);
  return {};
}

constexpr Member<Draft> kMembers[] = {
    {"messages", read_messages},
    {"system",
     [](JsonView v, Draft& d, const Bounds&) { return read_text_blocks(v, "system", d.options, d.system); }},
    {"stop_sequences", read_stop_sequences},
    {"thinking", read_thinking},
    {"tools",
     [](JsonView v, Draft& d, const Bounds&) {
       return read_flat_tools(v, {"custom", false, "input_schema", true}, d.tools, d.options);
     }},
    {"tool_choice", read_tool_choice_object},
    {"metadata", ignore_metadata},
    {"container", refuse},
    {"mcp_servers", refuse},
    {"context_management", refuse},
    {"output_format", refuse},
    {"output_config", read_output_config},
    // OpenAI's, whose effect this API's answers cannot show.
    {"n", refuse},
    {"stream_options", refuse},
    {"return_token_ids", refuse},
    {"return_tokens_as_token_ids", refuse},
};

}  // namespace

Result<ChatRequest> parse_messages_request(std::string_view body, const RequestBounds& bounds,
                                           MaxTokens max_tokens) {
  auto document = JsonDocument::parse(body);
  if (!document.ok()) return document.error();
  Draft d;
  if (Status status = read_members<Draft>(document->root(), kMembers, d, bounds); !status.ok())
    return status.error();
  if (!d.has_messages) return member_error("is required.", "messages");
  if (max_tokens == MaxTokens::required && !d.options.max_tokens)
    return member_error("is required.", "max_tokens");
  if (!d.unanswered.empty())
    return member_error("is a call without a tool_result after it: there is nothing to answer yet.",
                        d.unanswered);
  if (Status status = settle_tools(d.tools, d.options); !status.ok()) return status.error();
  MessageWriter system;
  system.new_turn("system");
  for (const std::string& text : d.system) system.add_text(text);
  const std::string first = system.take(), rest = d.messages.take();
  if (rest.empty()) return member_error("hold no text.", "messages");
  ChatRequest request;
  request.messages = "[" + first + (first.empty() ? "" : ",") + rest + "]";
  request.tools = std::move(d.tools);
  request.has_calls = d.has_calls;
  request.template_arguments = std::move(d.template_arguments);
  request.options = std::move(d.options);
  return request;
}

}  // namespace sluice
