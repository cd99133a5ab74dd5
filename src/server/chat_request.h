// A /v1/chat/completions request as C++ values (/apply-template takes the same). Parsing is pure: the fuzz
// target feeds it any bytes. Messages stay JSON text, checked and cleaned, because templates read them as JSON.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/request_members.h"
#include "server/tools.h"

namespace sluice {

struct ChatRequest {
  GenerationOptions options;
  std::string messages;  // JSON array: each with a known role, and content that is text, text parts, or null
  std::string template_arguments;  // JSON object of further variables of the template
  bool add_generation_prompt = true;
  // A last message of the assistant is left open, unless the client set add_generation_prompt: as llama.cpp's
  // server.
  bool continue_final_message = true;
  ToolOptions tools;
  bool has_calls = false;  // messages hold calls of tools, or their results
  bool logprobs = false;
  int top_logprobs = 0;
};

Result<ChatRequest> parse_chat_request(std::string_view body, const RequestBounds& bounds);

}  // namespace sluice
