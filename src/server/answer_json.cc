#include "server/answer_json.h"

#include <random>

#include "text/utf8.h"

namespace sluice {

void append_finish_reason(JsonWriter& w, FinishReason finish, bool called_tools) {
  if (finish == FinishReason::none)
    w.null();
  else if (called_tools && finish == FinishReason::stop)
    w.string("tool_calls");
  else
    w.string(finish == FinishReason::stop ? "stop" : "length");
}

void append_stop_reason(JsonWriter& w, const Choice& choice) {
  if (choice.stopped_by_text())
    w.string(choice.stop_text());
  else if (choice.stop_id() >= 0)
    w.integer(choice.stop_id());
  else
    w.null();
}

void append_usage(JsonWriter& w, const Usage& u) {
  w.begin_object();
  w.key("prompt_tokens").integer(u.prompt_tokens);
  w.key("completion_tokens").integer(u.completion_tokens);
  w.key("total_tokens").integer(int64_t(u.prompt_tokens) + u.completion_tokens);
  w.key("prompt_tokens_details").begin_object().key("cached_tokens").integer(u.cached_tokens).end_object();
  if (u.reasoning_tokens > 0) {
    w.key("completion_tokens_details").begin_object();
    w.key("reasoning_tokens").integer(u.reasoning_tokens).end_object();
  }
  w.end_object();
}

void append_timings(JsonWriter& w, const Timings& t) {
  if (!t.known) return;
  const auto rate = [](int n, double ms) { return ms > 0 ? 1000.0 * n / ms : 0.0; };
  const auto each = [](int n, double ms) { return n > 0 ? ms / n : 0.0; };
  w.key("timings").begin_object();
  w.key("queue_ms").thousandths(t.queue_ms);
  w.key("cache_n").integer(t.cache_n);
  w.key("prompt_n").integer(t.prompt_n);
  w.key("prompt_ms").thousandths(t.prompt_ms);
  w.key("prompt_per_token_ms").thousandths(each(t.prompt_n, t.prompt_ms));
  w.key("prompt_per_second").thousandths(rate(t.prompt_n, t.prompt_ms));
  w.key("predicted_n").integer(t.predicted_n);
  w.key("predicted_ms").thousandths(t.predicted_ms);
  // The first token is the prompt's: decoding made the others.
  w.key("predicted_per_token_ms").thousandths(each(t.predicted_n - 1, t.predicted_ms));
  w.key("predicted_per_second").thousandths(rate(t.predicted_n - 1, t.predicted_ms));
  w.end_object();
}

const std::string& name_token(std::string& name, const Tokenizer& tokenizer, int32_t id, bool as_id) {
  if (as_id) return name.assign("token_id:").append(std::to_string(id));
  const std::string_view piece = tokenizer.piece(id, ControlText::kShow);
  if (is_valid_utf8(piece)) return name.assign(piece);
  name.assign("bytes:");
  for (const char c : piece) {
    static constexpr char kHex[] = "0123456789abcdef";
    name += "\\x";
    name += kHex[static_cast<unsigned char>(c) >> 4];
    name += kHex[static_cast<unsigned char>(c) & 15];
  }
  return name;
}

std::string random_id() {
  static thread_local std::mt19937_64 engine{std::random_device{}()};
  static constexpr char kDigits[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string out(24, ' ');
  for (size_t at = 0; at < out.size();) {
    uint64_t random = engine();  // worth 12 digits of 36
    for (int i = 0; i < 12; ++i, random /= 36) out[at++] = kDigits[random % 36];
  }
  return out;
}

}  // namespace sluice
