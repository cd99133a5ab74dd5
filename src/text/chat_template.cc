#include "text/chat_template.h"

#include <fmt/format.h>

#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"
#include "text/render_cache.h"
#include "text/template_guard.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxJsonDepth = 64;
// Four probes run when a template is created, each on a message of a few bytes.
constexpr int64_t kProbeMemoryBytes = 16 << 20, kProbeMs = 500;

// The engine reports over several lines: a picture of the source, then "Error: …". One line remains.
std::string engine_message(const std::string& what) {
  std::string text = what;
  std::string position;
  const size_t error = what.rfind("Error: ");
  const size_t at = what.find(" at line ");
  if (error != what.npos && at != what.npos) {
    text = what.substr(error + 7);
    position = what.substr(at + 4, what.find(" in source:", at) - at - 4);
  } else if (const size_t newline = what.find('\n'); newline != what.npos && newline > 0) {
    text = what.substr(0, newline);
  }
  std::string out;
  for (const char c : text.substr(0, 500)) out += c == '\n' || c == '\r' ? ' ' : c;
  out = replace_invalid_utf8(out);
  return position.empty() ? out : fmt::format("{} ({})", out, position);
}

// The picture under a parser error shows where it is; the engine gives no number there.
std::string parse_position(const std::string& what, const std::string& source) {
  const size_t line = what.find("\n...");
  const size_t caret = what.rfind("\n");
  if (line == what.npos || caret == what.npos || what.back() != '^') return "";
  std::string shown = what.substr(line + 4, caret - line - 4 - 3);
  for (size_t at; (at = shown.find("↵")) != shown.npos;) shown.replace(at, std::string_view("↵").size(), "\n");
  const size_t found = source.find(shown);
  if (found == source.npos) return "";
  return " (" + template_position(source, found + (what.size() - caret - 2) - 3) + ")";
}

Error bad(std::string text, const char* field = "messages") {
  return Error{ErrorCode::kInvalidArgument, std::move(text), field};
}

// The engine's conversion of JSON recurses, so depth is checked on the text.
bool json_depth_ok(std::string_view json) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return false;
    } else if (c == ']' || c == '}') {
      depth -= depth > 0;
    }
  }
  return true;
}

Result<common_json> parse_json(std::string_view text, const char* field) {
  if (!json_depth_ok(text)) return bad(fmt::format("{} is nested too deeply", field), field);
  common_json json = common_json::parse_no_throw(std::string(text));
  if (json.is_discarded()) return bad(fmt::format("{} is not valid JSON", field), field);
  return json;
}

// Text of a content: a string, or the text parts joined. false: there are parts of other types.
bool content_text(const common_json& content, const char* glue, std::string& out) {
  if (content.is_string()) {
    out = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) return content.is_null();
  bool first = true;
  for (size_t i = 0; i < content.size(); ++i) {
    const common_json& part = content.at(i);
    if (!part.is_object() || !part.contains("text") || !part.at("text").is_string()) return false;
    if (!first) out += glue;
    first = false;
    out += part.at("text").get<std::string>();
  }
  return true;
}

std::string without_carriage_returns(std::string source) {
  // The engine does this itself by erasing, which is quadratic.
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') continue;
      out += '\n';
    } else {
      out += source[i];
    }
  }
  return out;
}

}  // namespace

class ChatTemplate::Impl {
 public:
  Status parse(std::string source);
  void probe();
  Result<std::string> render(const ChatTemplateInput& input) const;

  std::string source_, bos_text_, eos_text_;
  ChatTemplateLimits limits_;
  bool content_parts_ = false, string_content_ = true, object_arguments_ = true;
  bool shows_calls_ = false;

 private:
  Result<std::string> execute(const common_json& variables, int64_t memory_bytes, int64_t wall_ms) const;
  std::string probe_one(common_json message) const;
  Status adapt_message(common_json& message) const;
  Result<common_json> variables(const ChatTemplateInput& input, std::string& open_end) const;
  Result<std::string> render_anew(const ChatTemplateInput& input) const;

  jinja::program program_;
  std::vector<std::string> globals_;
  bool knows_developer_ = false;
  bool tells_time_ = false;  // the same input does not always give the same prompt
  mutable RenderCache cache_;
};

Status ChatTemplate::Impl::parse(std::string source) {
  if (source.size() > limits_.source_bytes) {
    return Status(
        Error{ErrorCode::kTooLarge,
              fmt::format("chat template of {} bytes (limit {})", source.size(), limits_.source_bytes),
              "chat_template"});
  }
  source_ = without_carriage_returns(std::move(source));
  knows_developer_ = source_.find("developer") != source_.npos;
  tells_time_ = source_.find("strftime_now") != source_.npos;
  try {
    jinja::lexer lexer;
    const jinja::lexer_result tokens = lexer.tokenize(source_);
    if (Status status = check_template_tokens(tokens, source_); !status) return status;
    program_ = jinja::parse_from_tokens(tokens);
    guard_program(program_);
    globals_ = used_globals(tokens);
  } catch (const std::out_of_range&) {  // std::stoll in the engine's parser
    return Status(bad("chat template: a number is out of range", "chat_template"));
  } catch (const std::exception& e) {
    return Status(
        bad("chat template: " + engine_message(e.what()) + parse_position(e.what(), source_), "chat_template"));
  }
  return {};
}

Result<std::string> ChatTemplate::Impl::execute(const common_json& variables, int64_t memory_bytes,
                                                int64_t wall_ms) const {
  TemplateBudget budget(memory_bytes, now_ns() + wall_ms * 1'000'000);
  const TemplateBudgetScope scope(budget);
  try {
    jinja::context context(source_);
    install_globals(context, globals_);
    jinja::global_from_json(context, variables, false);
    jinja::runtime runtime(context);
    const std::string out = jinja::runtime::gather_string_parts(runtime.execute(program_))->as_string().str();
    if (out.size() > limits_.output_bytes) {
      return Error{ErrorCode::kTooLarge, fmt::format("chat template: prompt of {} bytes", out.size()),
                   "messages"};
    }
    return out;
  } catch (const std::exception& e) {
    const bool limit = budget.exceeded() != ErrorCode::kInternal;
    return Error{limit ? budget.exceeded() : ErrorCode::kInvalidArgument,
                 "chat template: " + engine_message(e.what()), "messages"};
  }
}

std::string ChatTemplate::Impl::probe_one(common_json message) const {
  common_json messages = common_json::array();
  messages.push_back(common_json{{"role", "user"}, {"content", "hi"}});
  if (message.at("role") == "user") messages.clear(), messages = common_json::array();
  messages.push_back(message);
  common_json variables = common_json::object();
  variables["messages"] = messages;
  variables["bos_token"] = bos_text_;
  variables["eos_token"] = eos_text_;
  variables["add_generation_prompt"] = true;
  Result<std::string> out = execute(variables, std::min(limits_.memory_bytes, kProbeMemoryBytes), kProbeMs);
  return out ? *out : "";
}

// What shape of messages the template wants is found by showing it some: nothing in its file says so.
void ChatTemplate::Impl::probe() {
  const std::string needle = "@probe@";
  common_json part{{"type", "text"}, {"text", needle}};
  common_json parts = common_json::array();
  parts.push_back(part);
  const std::string plain = probe_one(common_json{{"role", "user"}, {"content", needle}});
  const std::string typed = probe_one(common_json{{"role", "user"}, {"content", parts}});
  auto clean = [&needle](const std::string& s) {
    return s.find(needle) != s.npos && s.find("'type'") == s.npos && s.find("\"type\"") == s.npos;
  };
  content_parts_ = clean(typed);
  string_content_ = plain.find(needle) != plain.npos || !content_parts_;

  common_json arguments{{"probe_name", needle}};
  common_json function{{"name", "f"}, {"arguments", arguments}};
  common_json call{{"id", "call00001"}, {"type", "function"}, {"function", function}};
  common_json calls = common_json::array();
  calls.push_back(call);
  // Python's way of writing a dict shows that the template wanted text. Some templates show calls only without
  // content.
  for (const common_json& content : {common_json(""), common_json(nullptr)}) {
    const std::string out =
        probe_one(common_json{{"role", "assistant"}, {"content", content}, {"tool_calls", calls}});
    if (out.find("'probe_name'") != out.npos) object_arguments_ = false;
    shows_calls_ = shows_calls_ || out.find(needle) != out.npos;
  }
}

Status ChatTemplate::Impl::adapt_message(common_json& message) const {
  if (!message.is_object()) return Status(bad("messages: an entry is not an object"));
  if (!message.contains("role") || !message.at("role").is_string())
    return Status(bad("messages: role must be a string"));
  if (message.at("role") == "developer" && !knows_developer_) message["role"] = "system";
  if (message.contains("content")) {
    common_json& content = message.at("content");
    std::string text;
    if (content.is_array() && !content_parts_) {
      if (!content_text(content, "\n", text)) return Status(bad("messages: this model takes text only"));
      content = text;
    } else if (content.is_string() && !string_content_) {
      common_json parts = common_json::array();
      parts.push_back(common_json{{"type", "text"}, {"text", content.get<std::string>()}});
      content = parts;
    }
  }
  if (!object_arguments_ || !message.contains("tool_calls") || !message.at("tool_calls").is_array()) return {};
  common_json& calls = message.at("tool_calls");
  for (size_t i = 0; i < calls.size(); ++i) {
    common_json& call = calls.at(i);
    if (!call.is_object() || !call.contains("function") || !call.at("function").is_object()) continue;
    common_json& function = call.at("function");
    if (!function.contains("arguments") || !function.at("arguments").is_string()) continue;
    const std::string text = function.at("arguments").get<std::string>();
    if (!json_depth_ok(text)) return Status(bad("messages: tool call arguments are nested too deeply"));
    // Some clients write no arguments as no text.
    common_json parsed = text.empty() ? common_json::object() : common_json::parse_no_throw(text);
    if (!parsed.is_discarded() && parsed.is_object()) function["arguments"] = parsed;
  }
  return {};
}

Result<common_json> ChatTemplate::Impl::variables(const ChatTemplateInput& input, std::string& open_end) const {
  common_json out = common_json::object();
  if (!input.extra_json.empty()) {
    Result<common_json> extra = parse_json(input.extra_json, "chat_template_kwargs");
    if (!extra) return extra.error();
    if (!extra->is_object()) return bad("chat_template_kwargs must be an object", "chat_template_kwargs");
    out = *extra;
  }
  Result<common_json> messages = parse_json(input.messages_json, "messages");
  if (!messages) return messages.error();
  if (!messages->is_array()) return bad("messages must be an array");
  bool generation = input.add_generation_prompt;
  if (input.continue_last_assistant && !messages->empty()) {
    const common_json& last = messages->back();
    const bool plain = last.is_object() && last.contains("role") && last.at("role") == "assistant" &&
                       last.contains("content") && !last.contains("tool_calls");
    if (plain && content_text(last.at("content"), "", open_end) && !last.at("content").is_null()) {
      messages->erase(messages->size() - 1);
      generation = true;
    }
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    if (Status status = adapt_message(messages->at(i)); !status) return status.error();
  }
  out["messages"] = *messages;
  if (!input.tools_json.empty()) {
    Result<common_json> tools = parse_json(input.tools_json, "tools");
    if (!tools) return tools.error();
    if (!tools->is_array()) return bad("tools must be an array", "tools");
    if (!tools->empty()) out["tools"] = *tools;
  }
  out["bos_token"] = bos_text_;
  out["eos_token"] = eos_text_;
  out["add_generation_prompt"] = generation;
  return out;
}

Result<std::string> ChatTemplate::Impl::render(const ChatTemplateInput& input) const {
  const size_t bytes = input.messages_json.size() + input.tools_json.size() + input.extra_json.size();
  if (bytes > limits_.input_bytes) {
    return Error{ErrorCode::kTooLarge,
                 fmt::format("messages of {} bytes (limit {})", bytes, limits_.input_bytes), "messages"};
  }
  if (tells_time_ || !input.may_keep || bytes > RenderCache::kEntryBytes) return render_anew(input);
  // Lengths first: no two inputs read alike.
  const std::string key = fmt::format(
      "{} {} {} {}\n{}{}{}", input.messages_json.size(), input.tools_json.size(), input.add_generation_prompt,
      input.continue_last_assistant, input.messages_json, input.tools_json, input.extra_json);
  if (std::optional<std::string> kept = cache_.find(key)) return std::move(*kept);
  Result<std::string> made = render_anew(input);
  if (made) cache_.add(key, *made);
  return made;
}

Result<std::string> ChatTemplate::Impl::render_anew(const ChatTemplateInput& input) const {
  try {
    std::string open_end;
    Result<common_json> given = variables(input, open_end);
    if (!given) return given.error();
    Result<std::string> out = execute(*given, limits_.memory_bytes, limits_.wall_ms);
    if (out && !open_end.empty()) *out += open_end;
    return out;
  } catch (const std::exception& e) {  // common_json on a shape that none of the checks above foresaw
    return bad(fmt::format("messages: {}", e.what()));
  }
}

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::create(std::string source, std::string bos_text, std::string eos_text,
                                          ChatTemplateLimits limits) {
  auto impl = std::make_unique<Impl>();
  impl->bos_text_ = std::move(bos_text);
  impl->eos_text_ = std::move(eos_text);
  impl->limits_ = limits;
  if (Status status = impl->parse(std::move(source)); !status) return status.error();
  impl->probe();
  return ChatTemplate(std::move(impl));
}

Result<std::string> ChatTemplate::render(const ChatTemplateInput& input) const { return impl_->render(input); }
bool ChatTemplate::takes_content_parts() const { return impl_->content_parts_; }
bool ChatTemplate::takes_object_arguments() const { return impl_->object_arguments_; }
bool ChatTemplate::renders_tools() const {
  return impl_->shows_calls_ && impl_->source_.find("tools") != std::string::npos;
}
const std::string& ChatTemplate::source() const { return impl_->source_; }

}  // namespace sluice
