#include "server/openapi_schemas.h"

namespace sluice::openapi {

const std::string_view kTokenizeRequest =
    R"json({"type":"object","required":["content"],"properties":{"content":{"type":"string"},"add_special":{"type":["boolean","null"]},
"parse_special":{"type":["boolean","null"]},"with_pieces":{"type":["boolean","null"]}}})json";
const std::string_view kDeleted =
    R"json({"type":"object","required":["id","object","deleted"],"properties":{"id":{"type":"string"},"object":{"const":"response"},"deleted":{"const":true}}})json";

namespace {

// Members of every request for text, whichever API.
constexpr std::string_view kGeneration = R"json(
"model":{"type":["string","null"]},
"temperature":{"type":["number","null"],"minimum":0,"maximum":2},
"top_p":{"type":["number","null"],"minimum":0,"maximum":1},
"min_p":{"type":["number","null"],"minimum":0,"maximum":1},
"top_k":{"type":["integer","null"],"minimum":-1,"maximum":2147483647},
"seed":{"type":["integer","null"],"minimum":-9223372036854775808,"maximum":9223372036854775807},
"presence_penalty":{"type":["number","null"],"minimum":-2,"maximum":2},
"frequency_penalty":{"type":["number","null"],"minimum":-2,"maximum":2},
"repetition_penalty":{"type":["number","null"],"minimum":0.01,"maximum":100},
"logit_bias":{"type":["object","null"],"maxProperties":1024,"additionalProperties":{"type":"number","minimum":-100,"maximum":100}},
"min_tokens":{"type":["integer","null"],"minimum":0,"maximum":2147483647},
"ignore_eos":{"type":["boolean","null"]},
"stop_token_ids":{"type":["array","null"],"items":{"type":"integer","minimum":0},"maxItems":64},
"skip_special_tokens":{"type":["boolean","null"]},
"include_stop_str_in_output":{"type":["boolean","null"]},
"stop":{"anyOf":[{"type":"null"},{"type":"string","minLength":1},{"type":"array","items":{"type":"string","minLength":1},"maxItems":16}]},
"stream":{"type":["boolean","null"]},
"cache_salt":{"type":["string","null"],"maxLength":256},
"priority":{"anyOf":[{"enum":["interactive","standard","batch",null]},{"type":"integer"}]},
"guided_json":{"$ref":"#/components/schemas/SchemaOrText"},
"guided_regex":{"$ref":"#/components/schemas/Regex"},
"guided_choice":{"$ref":"#/components/schemas/Choice"},
"guided_grammar":{"$ref":"#/components/schemas/Grammar"},
"grammar":{"type":["string","null"],"description":"GBNF; the rule root is the answer. Empty: none."},
"json_schema":{"$ref":"#/components/schemas/SchemaOrText"},
"structured_outputs":{"type":["object","null"],"additionalProperties":false,"properties":{
 "json":{"$ref":"#/components/schemas/SchemaOrText"},"regex":{"$ref":"#/components/schemas/Regex"},
 "choice":{"$ref":"#/components/schemas/Choice"},"grammar":{"$ref":"#/components/schemas/Grammar"},
 "json_object":{"type":["boolean","null"]}}},
"response_format":{"anyOf":[{"type":"null"},
 {"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"text"}}},
 {"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"const":"json_object"},"schema":{"type":["object","null"]}}},
 {"type":"object","required":["type","json_schema"],"additionalProperties":false,"properties":{"type":{"const":"json_schema"},
  "json_schema":{"type":"object","required":["schema"],"additionalProperties":false,"properties":{"name":{"type":["string","null"],"pattern":"^[A-Za-z0-9_-]{1,64}$"},
   "description":{"type":["string","null"]},"strict":{"type":["boolean","null"]},"schema":{"type":"object"}}}}}]},
"service_tier":{"type":["string","null"],"description":"Ignored."}
)json";

// Of OpenAI's chat and completions alone.
constexpr std::string_view kOpenAi = R"json(,
"max_tokens":{"type":["integer","null"],"minimum":0,"maximum":2147483647},
"n":{"type":["integer","null"],"minimum":1,"maximum":128},
"stream_options":{"type":["object","null"],"properties":{"include_usage":{"type":["boolean","null"]}}},
"return_token_ids":{"type":["boolean","null"]},
"return_tokens_as_token_ids":{"type":["boolean","null"]},
"user":{"type":["string","null"],"description":"Ignored."},
"metadata":{"type":["object","null"],"description":"Ignored."},
"store":{"type":["boolean","null"],"description":"Ignored."},
"safety_identifier":{"type":["string","null"],"description":"Ignored."},
"prompt_cache_key":{"type":["string","null"],"description":"Ignored."}
)json";

constexpr std::string_view kChat = R"json(,
"messages":{"type":"array","items":{"$ref":"#/components/schemas/ChatMessage"},"minItems":1,"maxItems":4096},
"max_completion_tokens":{"type":["integer","null"],"minimum":0,"maximum":2147483647},
"logprobs":{"type":["boolean","null"]},
"top_logprobs":{"type":["integer","null"],"minimum":0,"maximum":20},
"add_generation_prompt":{"type":["boolean","null"]},
"continue_final_message":{"type":["boolean","null"]},
"chat_template_kwargs":{"type":["object","null"],"maxProperties":32},
"tools":{"type":["array","null"],"maxItems":128,"items":{"type":"object","required":["type","function"],"properties":{"type":{"const":"function"},
 "function":{"type":"object","required":["name"],"properties":{"name":{"$ref":"#/components/schemas/ToolName"},"description":{"type":["string","null"]},
  "parameters":{"type":["object","null"]},"strict":{"type":["boolean","null"]}}}}}},
"tool_choice":{"anyOf":[{"enum":["none","auto","required",null]},{"type":"object","required":["type","function"],"properties":{"type":{"const":"function"},
 "function":{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}}}]},
"parallel_tool_calls":{"type":["boolean","null"]}
)json";

constexpr std::string_view kCompletion = R"json(,
"prompt":{"$ref":"#/components/schemas/Prompts"},
"echo":{"type":["boolean","null"]},
"logprobs":{"type":["integer","null"],"minimum":0,"maximum":20},
"best_of":{"type":["integer","null"],"minimum":0,"maximum":20},
"add_special_tokens":{"type":["boolean","null"]}
)json";

constexpr std::string_view kMessages = R"json(,
"messages":{"type":"array","items":{"$ref":"#/components/schemas/MessagesMessage"},"minItems":1,"maxItems":4096},
"system":{"anyOf":[{"type":"null"},{"type":"string"},{"type":"array","items":{"$ref":"#/components/schemas/TextPart"}}]},
"stop_sequences":{"type":["array","null"],"items":{"type":"string","minLength":1},"maxItems":16},
"metadata":{"type":["object","null"],"description":"Ignored."},
"thinking":{"type":["object","null"],"properties":{"type":{"enum":["enabled","disabled","adaptive"]}},"required":["type"]},
"output_config":{"type":["object","null"],"properties":{"format":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/FlatFormat"}]}}},
"tools":{"type":["array","null"],"maxItems":128,"items":{"type":"object","required":["name","input_schema"],"properties":{"type":{"enum":["custom",null]},
 "name":{"$ref":"#/components/schemas/ToolName"},"description":{"type":["string","null"]},"input_schema":{"type":"object"},"strict":{"type":["boolean","null"]}}}},
"tool_choice":{"anyOf":[{"type":"null"},{"type":"object","required":["type"],"properties":{"type":{"enum":["auto","any","none"]},"disable_parallel_tool_use":{"type":["boolean","null"]}}},
 {"type":"object","required":["type","name"],"properties":{"type":{"const":"tool"},"name":{"type":"string"},"disable_parallel_tool_use":{"type":["boolean","null"]}}}]}
)json";

constexpr std::string_view kResponses = R"json(,
"input":{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":4096,"items":{"$ref":"#/components/schemas/InputItem"}}]},
"instructions":{"type":["string","null"]},
"previous_response_id":{"type":["string","null"]},
"store":{"type":["boolean","null"]},
"max_tokens":{"type":["integer","null"],"minimum":0,"maximum":2147483647},
"max_output_tokens":{"type":["integer","null"],"minimum":1,"maximum":2147483647},
"metadata":{"type":["object","null"],"additionalProperties":{"type":"string"},"maxProperties":16},
"user":{"type":["string","null"]},
"text":{"type":["object","null"],"properties":{"format":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/FlatFormat"}]},"verbosity":{"description":"Ignored."}}},
"tools":{"type":["array","null"],"maxItems":128,"items":{"type":"object","required":["type","name"],"properties":{"type":{"const":"function"},
 "name":{"$ref":"#/components/schemas/ToolName"},"description":{"type":["string","null"]},"parameters":{"type":["object","null"]},"strict":{"type":["boolean","null"]}}}},
"tool_choice":{"anyOf":[{"enum":["none","auto","required",null]},{"type":"object","required":["type","name"],"properties":{"type":{"const":"function"},"name":{"type":"string"}}}]},
"parallel_tool_calls":{"type":["boolean","null"]},
"reasoning":{"type":["object","null"],"description":"Ignored."},
"include":{"type":["array","null"],"items":{"type":"string"},"description":"Ignored."},
"max_tool_calls":{"type":["integer","null"],"description":"Ignored."},
"stream_options":{"type":["object","null"],"description":"Ignored."},
"safety_identifier":{"type":["string","null"],"description":"Ignored."},
"prompt_cache_key":{"type":["string","null"],"description":"Ignored."},
"background":{"enum":[false,null]},
"top_logprobs":{"enum":[0,null]},
"truncation":{"enum":["disabled",null]}
)json";

// What these are made of.
constexpr std::string_view kParts = R"json(
"SchemaOrText":{"type":["object","string","null"],"description":"A JSON Schema, or its text."},
"Regex":{"type":["string","null"],"minLength":1,"maxLength":16384},
"Choice":{"type":["array","null"],"items":{"type":"string","minLength":1},"minItems":1,"maxItems":4096},
"Grammar":{"type":["string","null"],"minLength":1,"description":"GBNF; the rule root is the answer."},
"FlatFormat":{"anyOf":[{"type":"object","required":["type"],"additionalProperties":false,"properties":{"type":{"enum":["text","json_object"]}}},
 {"type":"object","required":["type","schema"],"additionalProperties":false,"properties":{"type":{"const":"json_schema"},"name":{"type":["string","null"],"pattern":"^[A-Za-z0-9_-]{1,64}$"},
  "description":{"type":["string","null"]},"strict":{"type":["boolean","null"]},"schema":{"type":"object"}}}]},
"ToolName":{"type":"string","pattern":"^[A-Za-z0-9_.-]{1,128}$"},
"Prompts":{"anyOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string","minLength":1},"minItems":1},
 {"type":"array","items":{"type":"integer","minimum":0},"minItems":1},
 {"type":"array","items":{"type":"array","items":{"type":"integer","minimum":0},"minItems":1},"minItems":1}]},
"TextPart":{"type":"object","required":["type","text"],"properties":{"type":{"const":"text"},"text":{"type":"string"}}},
"Content":{"anyOf":[{"type":"string"},{"type":"array","items":{"$ref":"#/components/schemas/TextPart"},"minItems":1}]},
"ChatMessage":{"type":"object","required":["role"],"properties":{"role":{"enum":["system","developer","user","assistant","tool","function"]},
 "content":{"anyOf":[{"$ref":"#/components/schemas/Content"},{"type":"null"}]},"reasoning_content":{"type":["string","null"]},"tool_call_id":{"type":["string","null"]},
 "tool_calls":{"type":["array","null"],"maxItems":128,"items":{"type":"object","required":["function"],"properties":{"id":{"type":"string"},"type":{"const":"function"},
  "function":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"arguments":{"type":"string"}}}}}}}},
"MessagesMessage":{"type":"object","required":["role","content"],"properties":{"role":{"enum":["user","assistant"]},
 "content":{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":256,"items":{"$ref":"#/components/schemas/Block"}}]}}},
"Block":{"anyOf":[{"$ref":"#/components/schemas/TextPart"},
 {"type":"object","required":["type","id","name","input"],"properties":{"type":{"const":"tool_use"},"id":{"type":"string"},"name":{"type":"string"},"input":{"type":"object"}}},
 {"type":"object","required":["type","tool_use_id"],"properties":{"type":{"const":"tool_result"},"tool_use_id":{"type":"string"},"is_error":{"type":["boolean","null"]},
  "content":{"anyOf":[{"type":"null"},{"type":"string"},{"type":"array","items":{"$ref":"#/components/schemas/TextPart"}}]}}},
 {"type":"object","required":["type","thinking"],"properties":{"type":{"const":"thinking"},"thinking":{"type":"string"},"signature":{"type":"string"}}},
 {"type":"object","required":["type"],"properties":{"type":{"const":"redacted_thinking"}}}]},
"InputItem":{"anyOf":[
 {"type":"object","required":["role","content"],"properties":{"type":{"const":"message"},"role":{"enum":["user","assistant","system","developer"]},"content":{"$ref":"#/components/schemas/InputTexts"}}},
 {"type":"object","required":["type","call_id","name","arguments"],"properties":{"type":{"const":"function_call"},"call_id":{"type":"string"},"name":{"type":"string"},"arguments":{"type":"string"}}},
 {"type":"object","required":["type","call_id","output"],"properties":{"type":{"const":"function_call_output"},"call_id":{"type":"string"},"output":{"$ref":"#/components/schemas/InputTexts"}}},
 {"type":"object","required":["type"],"properties":{"type":{"const":"reasoning"},"content":{"type":["array","null"],"items":{"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}}}}]},
"InputTexts":{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":256,"items":{"type":"object","required":["type","text"],
 "properties":{"type":{"enum":["input_text","output_text","text"]},"text":{"type":"string"}}}}]}
)json";

constexpr std::string_view kAnswers = R"json(
"Error":{"type":"object","required":["error"],"properties":{"error":{"type":"object","required":["message","type","param","code"],
 "properties":{"message":{"type":"string"},"type":{"type":"string"},"param":{"type":["string","null"]},"code":{"type":["string","null"]}}}}},
"MessagesError":{"type":"object","required":["type","error","request_id"],"properties":{"type":{"const":"error"},"request_id":{"type":"string"},
 "error":{"type":"object","required":["type","message"],"properties":{"type":{"type":"string"},"message":{"type":"string"}}}}},
"Usage":{"type":"object","required":["prompt_tokens","completion_tokens","total_tokens"],
 "properties":{"prompt_tokens":{"type":"integer"},"completion_tokens":{"type":"integer"},"total_tokens":{"type":"integer"}}},
"ChatCompletion":{"type":"object","required":["id","object","created","model","choices","usage"],"properties":{"id":{"type":"string"},
 "object":{"const":"chat.completion"},"created":{"type":"integer"},"model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
 "choices":{"type":"array","items":{"type":"object","required":["index","message","finish_reason","logprobs"],"properties":{"index":{"type":"integer"},
  "message":{"type":"object","required":["role","content"],"properties":{"role":{"const":"assistant"},"content":{"type":["string","null"]},"reasoning_content":{"type":"string"},
   "tool_calls":{"type":"array","items":{"type":"object","required":["id","type","function"],"properties":{"id":{"type":"string"},"type":{"const":"function"},
    "function":{"type":"object","required":["name","arguments"],"properties":{"name":{"type":"string"},"arguments":{"type":"string"}}}}}}}},
  "finish_reason":{"enum":["stop","length","tool_calls"]}}}}}},
"Completion":{"type":"object","required":["id","object","created","model","choices","usage"],"properties":{"id":{"type":"string"},
 "object":{"const":"text_completion"},"created":{"type":"integer"},"model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
 "choices":{"type":"array","items":{"type":"object","required":["index","text","finish_reason","logprobs"],"properties":{"index":{"type":"integer"},
  "text":{"type":"string"},"finish_reason":{"enum":["stop","length"]}}}}}},
"Message":{"type":"object","required":["id","type","role","model","content","stop_reason","stop_sequence","usage"],"properties":{"id":{"type":"string"},
 "type":{"const":"message"},"role":{"const":"assistant"},"model":{"type":"string"},
 "content":{"type":"array","items":{"anyOf":[{"$ref":"#/components/schemas/TextPart"},
  {"type":"object","required":["type","id","name","input"],"properties":{"type":{"const":"tool_use"},"id":{"type":"string"},"name":{"type":"string"},"input":{"type":"object"}}},
  {"type":"object","required":["type","thinking","signature"],"properties":{"type":{"const":"thinking"},"thinking":{"type":"string"},"signature":{"type":"string"}}}]}},
 "stop_reason":{"enum":["end_turn","max_tokens","stop_sequence","tool_use","model_context_window_exceeded"]},"stop_sequence":{"type":["string","null"]},
 "usage":{"type":"object","required":["input_tokens","output_tokens","cache_creation_input_tokens","cache_read_input_tokens"]}}},
"Response":{"type":"object","required":["id","object","created_at","status","model","output","usage","error","tools","tool_choice","text"],"properties":{"id":{"type":"string"},
 "object":{"const":"response"},"status":{"enum":["completed","incomplete"]},
 "output":{"type":"array","items":{"type":"object","required":["type","id","status"],"properties":{"type":{"enum":["message","function_call","reasoning"]}}}},
 "usage":{"type":"object","required":["input_tokens","output_tokens","total_tokens"]}}},
"Embeddings":{"type":"object","required":["object","data","model","usage"],"properties":{"object":{"const":"list"},
 "data":{"type":"array","items":{"type":"object","required":["object","index","embedding"],"properties":{"object":{"const":"embedding"},"index":{"type":"integer"},"embedding":{"type":["array","string"]}}}}}},
"Model":{"type":"object","required":["id","object","created","owned_by"],"properties":{"id":{"type":"string"},"object":{"const":"model"},"created":{"type":"integer"}}}
)json";

constexpr std::string_view kEmbeddings = R"json(
"input":{"$ref":"#/components/schemas/Prompts"},
"model":{"type":["string","null"]},
"encoding_format":{"enum":["float","base64",null]},
"dimensions":{"type":["integer","null"],"minimum":1,"maximum":65536},
"priority":{"anyOf":[{"enum":["interactive","standard","batch",null]},{"type":"integer"}]},
"cache_salt":{"type":["string","null"],"maxLength":256},
"user":{"type":["string","null"],"description":"Ignored."}
)json";

std::string request(std::string_view name, std::string_view required,
                    std::initializer_list<std::string_view> members) {
  std::string out = "\"" + std::string(name) + R"(":{"type":"object","required":)" + std::string(required) +
                    R"(,"properties":{)";
  for (const std::string_view part : members) out += part;
  return out + "}},";
}

}  // namespace

std::string schemas() {
  return request("ChatRequest", R"(["messages"])", {kGeneration, kOpenAi, kChat}) +
         request("CompletionRequest", R"(["prompt"])", {kGeneration, kOpenAi, kCompletion}) +
         request("CountTokensRequest", R"(["messages"])",
                 {kGeneration, kMessages,
                  R"(,"max_tokens":{"type":["integer","null"],"minimum":0,"maximum":2147483647})"}) +
         request(
             "MessagesRequest", R"(["messages","max_tokens"])",
             {kGeneration, kMessages, R"(,"max_tokens":{"type":"integer","minimum":0,"maximum":2147483647})"}) +
         request("ResponsesRequest", R"(["input"])", {kGeneration, kResponses}) +
         request("EmbeddingsRequest", R"(["input"])", {kEmbeddings}) + std::string(kParts) + "," +
         std::string(kAnswers);
}

}  // namespace sluice::openapi
