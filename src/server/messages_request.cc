#include "server/messages_request.h"

#include "base/log.h"
#include "server/json_writer.h"
#include "server/limits.h"

namespace sluice {

namespace {

using Bounds = RequestBounds;

// What one role says until the other speaks; consecutive turns of one role are one, as Anthropic has it.
struct Turn {
  std::string role;
  std::vector<std::string> texts;
  std::string calls;  // elements of tool_calls, JSON
};

struct Draft {
  GenerationOptions options;
  std::vector<std::string> system;
  std::string messages;  // elements of the array of messages, JSON, without the system's
  std::string template_arguments;
  bool has_messages = false;
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

class Conversation {
 public:
  explicit Conversation(Draft& draft) : draft_(draft), out_(draft.messages) {}

  Status add(JsonView message, const std::string& where) {
    if (!message.is_object()) return wanted("must be an object with role and content.", where);
    const auto role = message.find("role");
    if (!role || (role->string() != "user" && role->string() != "assistant"))
      return wanted("must be \"user\" or \"assistant\"; a system prompt is the member 'system'.",
                    at(where, "role"));
    const auto content = message.find("content");
    if (!content || content->is_null())
      return wanted("is required and must be a string or an array of blocks.", at(where, "content"));
    if (turn_.role != *role->string()) flush();
    turn_.role = std::string(*role->string());
    const std::string here = at(where, "content");
    if (const auto text = content->string()) {
      turn_.texts.emplace_back(*text);
      return {};
    }
    if (!content->is_array()) return wanted("must be a string or an array of blocks.", here);
    if (content->size() == 0) return wanted("is an empty array.", here);
    if (content->size() > size_t(limits::kParts))
      return member_error(fmt::format("has more than {} blocks.", limits::kParts), here);
    Status status;
    int i = 0;
    content->each([&](JsonView block) {
      status = add_block(block, here + "[" + std::to_string(i++) + "]");
      return status.ok();
    });
    return status;
  }

  void flush() {
    if (turn_.role.empty()) return;
    if (!turn_.texts.empty() || !turn_.calls.empty()) {
      begin(turn_.role);
      append_content(out_, turn_.texts);
      if (!turn_.calls.empty()) out_ += ",\"tool_calls\":[" + turn_.calls + "]";
      out_ += '}';
    }
    turn_ = {};
  }

 private:
  Status add_block(JsonView block, const std::string& where) {
    const auto type = block.is_object() ? block.find("type") : std::nullopt;
    if (!type || !type->string()) return wanted("must be an object with a type.", where);
    if (block.find("cache_control")) note_ignored("cache_control", draft_.options);
    const std::string_view kind = *type->string();
    if (kind == "text") {
      const auto text = block.find("text");
      if (!text || !text->string()) return wanted("is required and must be a string.", at(where, "text"));
      turn_.texts.emplace_back(*text->string());
      return {};
    }
    // What the model thought before its last answer is not shown to it again.
    if (turn_.role == "assistant" && (kind == "thinking" || kind == "redacted_thinking")) return {};
    if (turn_.role == "assistant" && kind == "tool_use") return add_call(block, where);
    if (turn_.role == "user" && kind == "tool_result") return add_result(block, where);
    return wanted(
        "must be \"text\", \"tool_use\" or \"thinking\" of the assistant, or \"tool_result\" of the user: this "
        "model "
        "reads text only.",
        at(where, "type"));
  }

  Status add_call(JsonView block, const std::string& where) {
    const auto id = block.find("id"), name = block.find("name"), input = block.find("input");
    if (!id || !id->string()) return wanted("is required and must be a string.", at(where, "id"));
    if (!name || !name->string()) return wanted("is required and must be a string.", at(where, "name"));
    if (!input || !input->is_object()) return wanted("is required and must be an object.", at(where, "input"));
    if (!turn_.calls.empty()) turn_.calls += ',';
    JsonWriter w(turn_.calls);
    w.begin_object()
        .key("id")
        .string(*id->string())
        .key("type")
        .string("function")
        .key("function")
        .begin_object();
    w.key("name").string(*name->string()).key("arguments").string(input->text()).end_object().end_object();
    return {};
  }

  // Results come before what the user says besides: they answer the turn before this one.
  Status add_result(JsonView block, const std::string& where) {
    const auto id = block.find("tool_use_id"), content = block.find("content");
    if (!id || !id->string()) return wanted("is required and must be a string.", at(where, "tool_use_id"));
    std::vector<std::string> texts;
    if (content && !content->is_null()) {
      if (Status status = read_text_blocks(*content, at(where, "content"), draft_.options, texts); !status.ok())
        return status;
    }
    if (texts.empty()) texts.emplace_back();
    begin("tool");
    append_content(out_, texts);
    JsonWriter w(out_);
    out_ += ',';
    w.key("tool_call_id").string(*id->string());
    out_ += '}';
    return {};
  }

  void begin(std::string_view role) {
    if (!out_.empty()) out_ += ',';
    out_ += "{\"role\":";
    append_json_string(out_, role);
  }

  static void append_content(std::string& out, const std::vector<std::string>& texts);

  Draft& draft_;
  std::string& out_;
  Turn turn_;
};

// Several texts stay several parts: how they are joined is the template's to say, on every API alike.
void write_content(JsonWriter& w, const std::vector<std::string>& texts) {
  if (texts.size() == 1) {
    w.string(texts.front());
    return;
  }
  w.begin_array();
  for (const std::string& text : texts)
    w.begin_object().key("type").string("text").key("text").string(text).end_object();
  w.end_array();
}

void Conversation::append_content(std::string& out, const std::vector<std::string>& texts) {
  out += ",\"content\":";
  JsonWriter w(out);
  if (texts.empty())
    w.string("");
  else
    write_content(w, texts);
}

Status read_messages(JsonView value, Draft& d, const Bounds&) {
  if (!value.is_array()) return member_error("must be an array of messages.");
  if (value.size() == 0) return member_error("must hold at least one message.");
  if (value.size() > size_t(limits::kMessages))
    return member_error(fmt::format("holds more than {} messages.", limits::kMessages));
  Conversation conversation(d);
  Status status;
  int i = 0;
  value.each([&](JsonView message) {
    status = conversation.add(message, "messages[" + std::to_string(i++) + "]");
    return status.ok();
  });
  conversation.flush();
  d.has_messages = true;
  return status;
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
    {"metadata", ignore_metadata},
    {"container", refuse},
    {"mcp_servers", refuse},
    {"context_management", refuse},
    {"output_format", refuse},
    {"output_config", refuse},
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
  if (d.messages.empty()) return member_error("hold no text.", "messages");
  ChatRequest request;
  JsonWriter w(request.messages);
  request.messages += '[';
  if (!d.system.empty()) {
    w.begin_object().key("role").string("system").key("content");
    write_content(w, d.system);
    w.end_object();
    request.messages += ',';
  }
  request.messages += d.messages + ']';
  request.template_arguments = std::move(d.template_arguments);
  request.options = std::move(d.options);
  return request;
}

}  // namespace sluice
