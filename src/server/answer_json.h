// Parts of answers that the OpenAI APIs share.
#pragma once

#include <string>
#include <string_view>

#include "server/generation.h"
#include "server/json_writer.h"

namespace sluice {

inline constexpr std::string_view kSystemFingerprint = "fp_sluice_1";

// "stop" or "length"; null while it goes on.
// "length" wins over "tool_calls": a call that was cut short is no call.
void append_finish_reason(JsonWriter& w, FinishReason finish, bool called_tools = false);
// vLLM's stop_reason: the stop string, or the stop_token_ids entry that ended the text; else null.
void append_stop_reason(JsonWriter& w, const Choice& choice);
// {"prompt_tokens":…}
void append_usage(JsonWriter& w, const Usage& usage);
// `"timings":{…}` in llama.cpp's words, and queue_ms; nothing where they are not known.
void append_timings(JsonWriter& w, const Timings& timings);

// How a token is written in log-probabilities: its text; `bytes:\xNN…` where it is no whole character (so that
// two such tokens stay different); `token_id:N` where the client asked for that. In place of what `name` was,
// whose memory is used again.
const std::string& name_token(std::string& name, const Tokenizer& tokenizer, int32_t id, bool as_id);

// Random part of an answer's id.
std::string random_id();

}  // namespace sluice
