#include "server/chat_plan.h"

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
  input.messages_json = request.messages;
  input.extra_json = request.template_arguments;
  input.add_generation_prompt = request.add_generation_prompt;
  input.continue_last_assistant = request.continue_final_message;
  auto prompt = chat_template->render(input);
  if (!prompt.ok()) {
    Error error = prompt.error();
    if (error.field.empty()) error.field = "messages";
    return ApiError{std::move(error), "chat_template_error"};
  }
  out = std::move(prompt).value();
  return std::nullopt;
}

ApiFailure plan_chat(ChatRequest& request, const ApiCall& call, std::string id, GenerationPlan& out) {
  const TimeNs parsed = now_ns();
  if (ApiFailure failure = check_model(request.options, call)) return failure;
  std::string text;
  if (ApiFailure failure = render_prompt(request, call, text)) return failure;
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
