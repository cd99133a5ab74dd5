// A /v1/messages request (Anthropic's Messages API) as a ChatRequest: blocks become the messages that templates
// know. Pure; any thread.
#pragma once

#include <string_view>

#include "server/chat_request.h"

namespace sluice {

enum class MaxTokens { required, optional };  // count_tokens takes requests without

Result<ChatRequest> parse_messages_request(std::string_view body, const RequestBounds& bounds,
                                           MaxTokens max_tokens);

}  // namespace sluice
