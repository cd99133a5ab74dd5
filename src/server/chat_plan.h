// From messages to a plan: what every API that takes messages does once its JSON has become a ChatRequest.
#pragma once

#include "server/api.h"
#include "server/chat_request.h"

namespace sluice {

// The prompt that the model sees. Fails where the model has no template, or the template refuses the messages.
ApiFailure render_prompt(const ChatRequest& request, const ApiCall& call, std::string& out);
// Checks the model's name, renders, encodes, checks the length. `request.options` is moved from.
ApiFailure plan_chat(ChatRequest& request, const ApiCall& call, std::string id, GenerationPlan& out);

}  // namespace sluice
