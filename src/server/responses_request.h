// A /v1/responses request (OpenAI's Responses API) as a ChatRequest and what its answer repeats. Pure; any
// thread.
#pragma once

#include <string>
#include <string_view>

#include "server/chat_request.h"

namespace sluice {

struct ResponsesRequest {
  ChatRequest chat;      // `messages` is left empty: see messages_of
  std::string input;     // elements of the conversation that this request adds, as templates read them, JSON
  std::string previous;  // previous_response_id; empty: none
  bool store = false;
  // Said back in the response object; JSON, "null" where not given.
  std::string instructions = "null", metadata = "{}", user = "null";
  std::string text_format = R"({"type":"text"})", tool_choice = R"("auto")", tools = "[]";
  std::string instructions_text;

  // The whole conversation: instructions, what came before, what this request adds.
  std::string messages_of(std::string_view before) const;
};

Result<ResponsesRequest> parse_responses_request(std::string_view body, const RequestBounds& bounds);

}  // namespace sluice
