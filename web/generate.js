// One answer of the model as a stream of pieces, by chat or, for a model without a template, by completion.
import {ApiError, call, events} from "./api.js";

const COMPLETION_TOKENS = 256;  // /v1/completions stops after 16 where nothing is asked for

// Yields {text, tokens, at} (tokens: how many; at: when it came, performance.now()), then {finish, timings} and
// {usage}. Throws ApiError, or AbortError.
export async function* generate({messages, chat, sampling, signal}) {
  const common = {stream: true, stream_options: {include_usage: true}, return_token_ids: true, ...sampling};
  const response = chat
      ? await call("v1/chat/completions", {signal, body: {messages, ...common}})
      : await call("v1/completions", {signal, body: {prompt: messages.map((m) => m.content).join(""), max_tokens: COMPLETION_TOKENS, ...common}});
  let complete = false;
  for await (const {data} of events(response)) {
    if (data === "[DONE]") {
      complete = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.status ?? 500, chunk.error.message, chunk.error.code);
    const choice = chunk.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    if (text) yield {text, tokens: choice.token_ids?.length || 1, at: performance.now()};
    if (choice?.finish_reason) yield {finish: choice.finish_reason, timings: chunk.timings ?? null};
    if (chunk.usage) yield {usage: chunk.usage};
  }
  if (!complete) throw new ApiError(0, "The connection ended before the answer did.", null);
}
