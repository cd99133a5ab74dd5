#include "server/chat_plan.h"

#include "server/grammar_members.h"

namespace sluice {

ApiFailure render_prompt(const ChatRequest& request, const ApiCall& call, std::string& out) {
  const ChatTemplate* chat_template = call.model.chat_template();
  if (chat_template == nullptr) {
    return ApiError{{ErrorCode::kUnsupported,
                     "This model has no chat template, so it cannot take messages. Start the server with "
                     "--chat-template FILE, or send "
                     "text to /v1/completions.",
                     "messages"},
                    "no_chat_template"};
  }
  ChatTemplateInput input;
  std::string as_text;
  input.messages_json = request.messages;
  const std::string_view tools = request.tools.active() ? request.tools.tools_json : std::string_view();
  if (chat_template->renders_tools()) {
    input.tools_json = tools;
  } else if (request.tools.active() || request.has_calls) {
    as_text = tools_as_text(request.messages, tools);
    input.messages_json = as_text;
  }
  input.extra_json = request.template_arguments;
  input.add_generation_prompt = request.add_generation_prompt;
  input.continue_last_assistant = request.continue_final_message;
  // Who salts the prefix cache does not want others to find out what was asked, by time or otherwise.
  input.may_keep = request.options.cache_salt == decltype(request.options.cache_salt){};
  auto prompt = chat_template->render(input);
  if (!prompt.ok()) {
    Error error = prompt.error();
    if (error.field.empty()) error.field = "messages";
    return ApiError{std::move(error), "chat_template_error"};
  }
  out = std::move(prompt).value();
  return std::nullopt;
}

namespace {

ToolFormat tool_format(const ApiCall& call) {
  bool known = false;
  const ToolFormat set = tool_format_named(call.config.tool_parser, known);
  if (known) return set;
  const ChatTemplate& chat_template = *call.model.chat_template();
  return chat_template.renders_tools() ? tool_format_of(chat_template.source()) : ToolFormat::hermes;
}

// How calls are read, and where they are forced, what makes the model call: the prompt opens the call, and a
// grammar holds the answer to the tools.
Status apply_tools(const ToolOptions& tools, const ApiCall& call, GenerationOptions& options,
                   std::string& prompt) {
  if (!tools.active()) return {};
  options.tool_format = tool_format(call);
  options.one_call = !tools.parallel;
  if (!tools.forced()) return {};
  if (options.tool_format == ToolFormat::none)
    return Error{ErrorCode::kUnsupported, "cannot be enforced: server.tool_parser is none.", "tool_choice"};
  options.inside_call = true;
  if (options.tool_format == ToolFormat::hermes) prompt += "<tool_call>\n";
  if (options.tool_format == ToolFormat::mistral) prompt += "[TOOL_CALLS] ";
  return set_grammar(options, forced_calls(tools, options.tool_format), "tool_choice");
}

// Thoughts come before the answer, so one that is held to a form, or is a call in any case, has none: what the
// template opened is closed.
void apply_reasoning(const ChatRequest& request, const ApiCall& call, GenerationOptions& options,
                     std::string& prompt) {
  const std::string& parser = call.config.reasoning_parser;
  if (parser == "none") return;
  if (parser == "auto" && !template_shows_reasoning(call.model.chat_template()->source())) return;
  const size_t end = prompt.find_last_not_of(" \n") + 1;
  const bool opened = std::string_view(prompt).substr(0, end).ends_with(kThoughtOpen);
  if (!options.grammar && !request.tools.forced()) {
    options.reasoning = opened ? Reasoning::opened : Reasoning::begins;
  } else if (opened) {
    prompt.resize(end);
    prompt.append("\n\n").append(kThoughtClose).append("\n\n");
  }
}

}  // namespace

ApiFailure plan_chat(ChatRequest& request, const ApiCall& call, std::string id, GenerationPlan& out) {
  const TimeNs parsed = now_ns();
  if (ApiFailure failure = check_model(request.options, call)) return failure;
  std::string text;
  if (ApiFailure failure = render_prompt(request, call, text)) return failure;
  apply_reasoning(request, call, request.options, text);
  if (Status status = apply_tools(request.tools, call, request.options, text); !status.ok())
    return api_error(status.error());
  if (ApiFailure failure = check_text(text.size(), call, "messages")) return failure;
  Prompt prompt;
  prompt.ids = encode_prompt(call.model.tokenizer(), text, true);
  if (ApiFailure failure = check_prompt(prompt.ids, call, "messages")) return failure;
  out = plan_of(call, std::move(request.options), std::move(id));
  out.arrival.parsed = parsed;
  out.keep_tokens = request.logprobs || out.options.return_token_ids;
  out.sampling.top_logprobs = request.logprobs ? request.top_logprobs : -1;
  out.prompts.push_back(std::move(prompt));
  return std::nullopt;
}

}  // namespace sluice
