// A /v1/completions request as C++ values. Parsing is pure: the fuzz target feeds it any bytes.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/request_members.h"

namespace sluice {

using PromptInput = std::variant<std::string, std::vector<int32_t>>;  // text, or token ids

// A text, token ids, or an array of either.
Status read_prompts(JsonView value, std::vector<PromptInput>& prompts, const RequestBounds& bounds);

struct CompletionRequest {
  GenerationOptions options;
  std::vector<PromptInput> prompts;
  bool echo = false;
  int logprobs = -1;  // -1: none; else how many of the likeliest tokens besides the chosen one
  int best_of = -1;
  bool add_special_tokens = true;
};

Result<CompletionRequest> parse_completion_request(std::string_view body, const RequestBounds& bounds);

}  // namespace sluice
