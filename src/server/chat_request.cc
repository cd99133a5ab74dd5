#include "server/chat_request.h"

#include "base/log.h"
#include "engine/engine.h"
#include "server/json_writer.h"
#include "server/limits.h"

namespace sluice {

namespace {

using Bounds = RequestBounds;

// Also members of the parse that end up elsewhere.
struct Draft {
  GenerationOptions options;
  ChatRequest chat;
  std::optional<bool> add_generation_prompt;
  std::optional<int> max_completion_tokens, top_logprobs;
  bool continue_final_message = false;
  bool has_messages = false;
};

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

Status check_parts(JsonView parts, const std::string& where) {
  if (parts.size() == 0) return member_error("is an empty array.", where);
  if (parts.size() > size_t(limits::kParts))
    return member_error(fmt::format("has more than {} parts.", limits::kParts), where);
  Status status;
  int i = 0;
  parts.each([&](JsonView part) {
    const std::string at = where + "[" + std::to_string(i++) + "]";
    const auto type = part.find("type");
    const auto text = part.find("text");
    if (!part.is_object())
      status = member_error("must be an object with type and text.", at);
    else if (!type || !type->string())
      status = member_error("is required and must be a string.", at + ".type");
    else if (type->string() != "text")
      status = member_error("must be \"text\": this model reads text only.", at + ".type");
    else if (!text || !text->string())
      status = member_error("is required and must be a string.", at + ".text");
    return status.ok();
  });
  return status;
}

Status check_content(JsonView message, std::string_view role, const std::string& where) {
  const auto content = message.find("content");
  const auto calls = message.find("tool_calls");
  if (!content || content->is_null()) {
    const bool has_calls = role == "assistant" &&
                           ((calls && calls->is_array() && calls->size() > 0) || message.find("function_call"));
    if (has_calls) return {};
    return member_error("is required and must be a string or an array of parts.", where + ".content");
  }
  if (content->string()) return {};
  if (!content->is_array()) return member_error("must be a string or an array of parts.", where + ".content");
  return check_parts(*content, where + ".content");
}

Status copy_message(JsonView message, const std::string& where, JsonWriter& out, bool& has_calls) {
  if (!message.is_object()) return member_error("must be an object with role and content.", where);
  const auto role_value = message.find("role");
  const auto role = role_value ? role_value->string() : std::nullopt;
  if (!role) return member_error("is required and must be a string.", where + ".role");
  bool known = false;
  for (std::string_view r : kRoles) known = known || r == *role;
  if (!known) return member_error("must be system, developer, user, assistant or tool.", where + ".role");
  if (Status status = check_content(message, *role, where); !status.ok()) return status;
  if (const auto calls = message.find("tool_calls"); calls && !calls->is_null()) {
    if (Status status = check_tool_calls(*calls, where + ".tool_calls"); !status.ok()) return status;
    has_calls = true;
  }
  has_calls = has_calls || *role == "tool";
  // What it thought then; templates decide what of it the model sees again.
  if (const auto thoughts = message.find("reasoning_content");
      thoughts && !thoughts->is_null() && !thoughts->string())
    return member_error("must be a string.", where + ".reasoning_content");
  Status status;
  std::vector<std::string_view> seen;
  out.begin_object();
  message.each_member([&](std::string_view name, JsonView value) {
    for (std::string_view s : seen) {
      if (s == name)
        status = member_error("is given more than once.", where + "." + std::string(name.substr(0, 64)));
    }
    if (seen.size() >= 32) status = member_error("has more than 32 members.", where);
    if (!status.ok()) return false;
    seen.push_back(name);
    out.key(name);
    // Templates know the older name of the same role.
    if (name == "role" && *role == "developer")
      out.string("system");
    else
      out.raw(value.text());
    return true;
  });
  out.end_object();
  return status;
}

Status read_messages(JsonView value, Draft& d, const Bounds&) {
  JsonWriter out(d.chat.messages);
  out.begin_array();
  Status status = each_message(value, [&](JsonView message, const std::string& where) {
    return copy_message(message, where, out, d.chat.has_calls);
  });
  out.end_array();
  d.has_messages = true;
  return status;
}

// Names that the renderer itself sets; letting clients set them is a way to other prompts than the template's.
constexpr std::string_view kReserved[] = {"messages",
                                          "tools",
                                          "documents",
                                          "chat_template",
                                          "tokenize",
                                          "add_generation_prompt",
                                          "continue_final_message",
                                          "bos_token",
                                          "eos_token",
                                          "raise_exception",
                                          "strftime_now"};

Status read_template_arguments(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_object()) return member_error("must be an object.");
  if (value.size() > size_t(limits::kTemplateArguments)) {
    return member_error(fmt::format("has more than {} members.", limits::kTemplateArguments));
  }
  Status status;
  value.each_member([&](std::string_view name, JsonView) {
    for (std::string_view reserved : kReserved) {
      if (name == reserved)
        status = member_error("is set by the server and may not be given.",
                              "chat_template_kwargs." + std::string(name));
    }
    return status.ok();
  });
  d.chat.template_arguments = value.text();
  return status;
}

Status read_optional_boolean(JsonView value, std::optional<bool>& out) {
  bool v = false;
  Status status = read_boolean(value, v);
  out = v;
  return status;
}

Status read_optional_integer(JsonView value, int low, int high, std::optional<int>& out) {
  int v = 0;
  Status status = read_integer(value, low, high, v);
  out = v;
  return status;
}

constexpr Member<Draft> kMembers[] = {
    {"messages", read_messages},
    {"logprobs", [](JsonView v, Draft& d, const Bounds&) { return read_boolean(v, d.chat.logprobs); }},
    {"top_logprobs",
     [](JsonView v, Draft& d, const Bounds&) {
       return read_optional_integer(v, 0, kMaxTopLogprobs, d.top_logprobs);
     }},
    {"max_completion_tokens",
     [](JsonView v, Draft& d, const Bounds&) {
       return read_optional_integer(v, 0, INT32_MAX, d.max_completion_tokens);
     }},
    {"add_generation_prompt",
     [](JsonView v, Draft& d, const Bounds&) { return read_optional_boolean(v, d.add_generation_prompt); }},
    {"continue_final_message",
     [](JsonView v, Draft& d, const Bounds&) { return read_boolean(v, d.continue_final_message); }},
    {"chat_template_kwargs", read_template_arguments},
    {"tools", [](JsonView v, Draft& d, const Bounds&) { return read_tools(v, d.chat.tools); }},
    {"tool_choice", [](JsonView v, Draft& d, const Bounds&) { return read_tool_choice(v, d.chat.tools); }},
    {"parallel_tool_calls",
     [](JsonView v, Draft& d, const Bounds&) { return read_boolean(v, d.chat.tools.parallel); }},
};

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view body, const RequestBounds& bounds) {
  auto document = JsonDocument::parse(body);
  if (!document.ok()) return document.error();
  Draft d;
  if (Status status = read_members<Draft>(document->root(), kMembers, d, bounds); !status.ok())
    return status.error();
  if (!d.has_messages) return member_error("is required.", "messages");
  if (d.top_logprobs && *d.top_logprobs > 0 && !d.chat.logprobs)
    return member_error("needs logprobs to be true.", "top_logprobs");
  if (d.continue_final_message && d.add_generation_prompt == true) {
    return member_error("cannot be set together with add_generation_prompt.", "continue_final_message");
  }
  if (Status status = settle_tools(d.chat.tools, d.options); !status.ok()) return status.error();
  if (d.options.n > bounds.max_completions)
    return member_error(fmt::format("must be an integer from 1 to {}.", bounds.max_completions), "n");
  // continue_final_message: false alone changes nothing, as in llama.cpp's server: the last message is still
  // the model's own, and a second turn of the model after it is not what any template was made for.
  d.chat.add_generation_prompt = d.add_generation_prompt.value_or(true);
  d.chat.continue_final_message = d.continue_final_message || !d.add_generation_prompt;
  if (d.max_completion_tokens) d.options.max_tokens = d.max_completion_tokens;
  d.chat.top_logprobs = d.top_logprobs.value_or(0);
  d.chat.options = std::move(d.options);
  return std::move(d.chat);
}

}  // namespace sluice
