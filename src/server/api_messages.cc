// POST /v1/messages and /v1/messages/count_tokens, as Anthropic's API has them.
#include "server/answer_json.h"
#include "server/chat_plan.h"
#include "server/messages_request.h"

namespace sluice {

namespace {

// One event of a stream: its name stands in the data as well, which comes between begin and end.
void begin_event(std::string& out, std::string_view name) {
  out.append("event: ").append(name).append("\ndata: ");
}
void end_event(std::string& out) { out += "\n\n"; }

void append_event(std::string& out, std::string_view name, std::string_view json) {
  begin_event(out, name);
  out += json;
  end_event(out);
}

class MessagesFormat final : public AnswerFormat {
 public:
  MessagesFormat(const GenerationPlan& plan) : plan_id_(plan.id), model_(plan.model) {
    max_tokens_ = plan.options.max_tokens.value_or(0);
  }

  void piece(std::string& out, const ChoiceView& view, const ChoiceDelta& delta, const Timings&) override {
    if (view.first) {
      prompt_tokens_ = int(view.prompt.ids.size());
      write_start(out);
    }
    if (!delta.thoughts.empty()) {
      if (open_ != Block::thinking) open_block(out, Block::thinking, thinking_block(""));
      write_delta(out, "thinking_delta", "thinking", delta.thoughts);
    }
    in_order(
        delta,
        [&](std::string_view text) {
          if (open_ != Block::text) open_block(out, Block::text, R"({"type":"text","text":""})");
          write_delta(out, "text_delta", "text", text);
        },
        [&](const ToolCallPiece& call) {
          if (!call.name.empty()) open_block(out, Block::tool_use, tool_use(call.name, "{}"));
          if (!call.arguments.empty()) write_delta(out, "input_json_delta", "partial_json", call.arguments);
        });
    if (!view.choice.ended()) return;
    close_block(out);
    keep_ending(view.choice);
  }

  void close_stream(std::string& out, const Usage& usage, bool) override {
    std::string json;
    JsonWriter w(json);
    w.begin_object().key("type").string("message_delta").key("delta").begin_object();
    write_ending(w);
    w.end_object().key("usage");
    write_usage(w, usage);
    w.end_object();
    append_event(out, "message_delta", json);
    append_event(out, "message_stop", R"({"type":"message_stop"})");
  }

  void stream_error(std::string& out, const ApiError& error, std::string_view request_id) override {
    HttpResponse response = error_response(error);
    style_error(response, ErrorStyle::anthropic, request_id);
    append_event(out, "error", response.body);
  }

  ErrorStyle error_style() const override { return ErrorStyle::anthropic; }

  void usage(std::string&, const Usage&) override {}  // comes with message_delta

  void begin_whole(std::string& out) override {
    JsonWriter w(out);
    w.begin_object();
    write_head(w);
  }

  void whole_choice(std::string& out, const ChoiceView& view, const ChoiceDelta& delta) override {
    out += R"(,"content":[)";
    JsonWriter w(out);
    if (!delta.thoughts.empty()) w.raw(thinking_block(delta.thoughts));
    for (const AnswerPart& part : parts_of(delta)) {
      if (part.is_call)
        w.raw(tool_use(part.name, input_of(part.text)));
      else
        w.begin_object().key("type").string("text").key("text").string(part.text).end_object();
    }
    out += "],";
    keep_ending(view.choice);
    JsonWriter ending(out);
    write_ending(ending);
    prompt_tokens_ = int(view.prompt.ids.size());
  }

  void end_whole(std::string& out, const Usage& usage, const Timings&) override {
    out += R"(,"usage":)";
    JsonWriter w(out);
    write_usage(w, usage);
    out += '}';
  }

 private:
  void write_head(JsonWriter& w) const {
    w.key("id").string(plan_id_).key("type").string("message").key("role").string("assistant");
    w.key("model").string(model_);
  }

  // What of the prompt was found cached is known at the end only; until then all of it counts as input.
  void write_start(std::string& out) const {
    std::string json;
    JsonWriter w(json);
    w.begin_object().key("type").string("message_start").key("message").begin_object();
    write_head(w);
    w.key("content")
        .begin_array()
        .end_array()
        .key("stop_reason")
        .null()
        .key("stop_sequence")
        .null()
        .key("usage");
    write_usage(w, Usage{.prompt_tokens = prompt_tokens_});
    w.end_object().end_object();
    append_event(out, "message_start", json);
  }

  enum class Block : uint8_t { none, thinking, text, tool_use };

  void open_block(std::string& out, Block kind, const std::string& block) {
    close_block(out);
    open_ = kind;
    std::string json = R"({"type":"content_block_start","index":)" + std::to_string(index_);
    append_event(out, "content_block_start", json + R"(,"content_block":)" + block + "}");
    if (index_ == 0) append_event(out, "ping", R"({"type":"ping"})");
  }

  void close_block(std::string& out) {
    if (open_ == Block::none) return;
    if (open_ == Block::thinking) write_delta(out, "signature_delta", "signature", "");
    open_ = Block::none;
    append_event(out, "content_block_stop",
                 R"({"type":"content_block_stop","index":)" + std::to_string(index_++) + "}");
  }

  void write_delta(std::string& out, const char* type, const char* member, std::string_view text) const {
    begin_event(out, "content_block_delta");
    JsonWriter w(out);
    w.begin_object().key("type").string("content_block_delta").key("index").integer(index_).key("delta");
    w.begin_object().key("type").string(type).key(member).string(text).end_object().end_object();
    end_event(out);
  }

  // Thoughts are not sealed here: the signature, which clients give back, is empty.
  static std::string thinking_block(std::string_view text) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("type").string("thinking").key("thinking").string(text);
    w.key("signature").string("").end_object();
    return out;
  }

  static std::string tool_use(std::string_view name, std::string_view input) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("type").string("tool_use").key("id").string("toolu_" + random_id());
    w.key("name").string(name).key("input").raw(input).end_object();
    return out;
  }

  // `input` is an object in this API. What the model wrote and is none (cut short, or its own mistake) is not
  // lost: it stands as text under the name that Anthropic's documents give such input.
  static std::string input_of(const std::string& arguments) {
    const auto document = JsonDocument::parse(arguments);
    if (document.ok() && document->root().is_object()) return arguments;
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("INVALID_JSON").string(arguments).end_object();
    return out;
  }

  static void write_usage(JsonWriter& w, const Usage& usage) {
    w.begin_object().key("input_tokens").integer(usage.prompt_tokens - usage.cached_tokens);
    w.key("cache_creation_input_tokens").integer(0).key("cache_read_input_tokens").integer(usage.cached_tokens);
    w.key("output_tokens").integer(usage.completion_tokens).end_object();
  }

  void keep_ending(const Choice& choice) {
    if (choice.stopped_by_text()) {
      stop_reason_ = "stop_sequence";
      stop_sequence_ = choice.stop_text();
    } else if (choice.finish() == FinishReason::stop) {
      stop_reason_ = choice.called() ? "tool_use" : "end_turn";
    } else {
      const bool full = choice.completion_tokens() < max_tokens_;
      stop_reason_ = full ? "model_context_window_exceeded" : "max_tokens";
    }
  }

  void write_ending(JsonWriter& w) const {
    w.key("stop_reason").string(stop_reason_).key("stop_sequence");
    if (stop_sequence_)
      w.string(*stop_sequence_);
    else
      w.null();
  }

  const std::string plan_id_, model_;
  int max_tokens_ = 0;
  int prompt_tokens_ = 0;
  Block open_ = Block::none;
  int index_ = 0;  // of the open block, or else of the next
  const char* stop_reason_ = "end_turn";
  std::optional<std::string> stop_sequence_;
};

}  // namespace

ApiFailure prepare_messages(std::string_view body, const ApiCall& call, PreparedGeneration& out) {
  auto request = parse_messages_request(body, bounds_of(call), MaxTokens::required);
  if (!request.ok()) return api_error(request.error());
  if (ApiFailure failure = plan_chat(*request, call, "msg_" + random_id(), out.plan)) return failure;
  out.format = std::make_unique<MessagesFormat>(out.plan);
  return std::nullopt;
}

HttpResponse count_message_tokens(std::string_view body, const ApiCall& call) {
  auto request = parse_messages_request(body, bounds_of(call), MaxTokens::optional);
  if (!request.ok()) return error_response(api_error(request.error()));
  GenerationPlan plan;
  if (ApiFailure failure = plan_chat(*request, call, {}, plan)) return error_response(*failure);
  HttpResponse response;
  response.headers = headers_of(plan.options);
  JsonWriter w(response.body);
  w.begin_object().key("input_tokens").integer(int64_t(plan.prompts.front().ids.size())).end_object();
  return response;
}

}  // namespace sluice
