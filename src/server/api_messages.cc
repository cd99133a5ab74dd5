// POST /v1/messages and /v1/messages/count_tokens, as Anthropic's API has them.
#include "server/answer_json.h"
#include "server/chat_plan.h"
#include "server/messages_request.h"

namespace sluice {

namespace {

// One event of a stream: its name stands in the data as well.
void append_event(std::string& out, std::string_view name, std::string_view json) {
  out.append("event: ").append(name).append("\ndata: ").append(json).append("\n\n");
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
    if (!delta.text.empty()) {
      if (!block_open_) open_block(out);
      std::string json = R"({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":)";
      append_json_string(json, delta.text);
      append_event(out, "content_block_delta", json + "}}");
    }
    if (!view.choice.ended()) return;
    if (block_open_) append_event(out, "content_block_stop", R"({"type":"content_block_stop","index":0})");
    block_open_ = false;
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
    if (!delta.text.empty())
      w.begin_object().key("type").string("text").key("text").string(delta.text).end_object();
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

  void open_block(std::string& out) {
    block_open_ = true;
    append_event(out, "content_block_start",
                 R"({"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}})");
    append_event(out, "ping", R"({"type":"ping"})");
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
      stop_reason_ = "end_turn";
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
  bool block_open_ = false;
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
  JsonWriter w(response.body);
  w.begin_object().key("input_tokens").integer(int64_t(plan.prompts.front().ids.size())).end_object();
  return response;
}

}  // namespace sluice
