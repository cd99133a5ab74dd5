// Members that hold an answer to a form: OpenAI's response_format, vLLM's guided_* and structured_outputs,
// llama.cpp's grammar and json_schema. One request may have one of them. Checked here, compiled by the router's
// grammar pool (a compile may take seconds), so that errors name the member in both cases. Pure.
#pragma once

#include "server/json.h"
#include "server/request_members.h"

namespace sluice {

Status read_response_format(JsonView value, GenerationOptions& options, const RequestBounds& bounds);
// As response_format, but for a schema's members, which stand beside the type: text.format of the Responses
// API, output_config.format of Messages. `field`: its path.
Status read_flat_format(JsonView value, const std::string& field, GenerationOptions& options);
Status read_guided_json(JsonView value, GenerationOptions& options, const RequestBounds& bounds);
Status read_guided_regex(JsonView value, GenerationOptions& options, const RequestBounds& bounds);
Status read_guided_choice(JsonView value, GenerationOptions& options, const RequestBounds& bounds);
Status read_guided_grammar(JsonView value, GenerationOptions& options, const RequestBounds& bounds);
Status read_structured_outputs(JsonView value, GenerationOptions& options, const RequestBounds& bounds);
Status read_llama_grammar(JsonView value, GenerationOptions& options, const RequestBounds& bounds);
Status read_llama_json_schema(JsonView value, GenerationOptions& options, const RequestBounds& bounds);

// Sets what the answer is held to. An error where another member has.
Status set_grammar(GenerationOptions& options, GrammarSource source, std::string field);
// What of the members contradicts a grammar; after all members are read.
Status check_grammar_members(const GenerationOptions& options);

}  // namespace sluice
