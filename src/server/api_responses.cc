// POST /v1/responses, as OpenAI's Responses API has it.
#include "server/answer_json.h"
#include "server/chat_plan.h"
#include "server/message_writer.h"
#include "server/response_store.h"
#include "server/responses_request.h"

namespace sluice {

namespace {

struct Keep {
  ResponseStore* store = nullptr;  // null: the response is not kept
  uint32_t owner = 0;
  std::string before;  // the conversation up to this answer, without instructions
};

class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(const GenerationPlan& plan, ResponsesRequest request, Keep keep)
      : id_(plan.id),
        item_id_("msg_" + random_id()),
        model_(plan.model),
        created_(plan.created),
        temperature_(plan.sampling.temperature),
        top_p_(plan.sampling.top_p),
        max_tokens_(plan.options.max_tokens),
        request_(std::move(request)),
        keep_(std::move(keep)) {}

  void piece(std::string& out, const ChoiceView& view, const ChoiceDelta& delta, const Timings&) override {
    if (view.first) open(out);
    if (!delta.text.empty()) {
      text_ += delta.text;
      std::string json = place();
      json += R"(,"delta":)";
      append_json_string(json, delta.text);
      event(out, "response.output_text.delta", json + R"(,"logprobs":[])");
    }
    if (!view.choice.ended()) return;
    complete_ = view.choice.finish() == FinishReason::stop;
    std::string text;
    append_json_string(text, text_);
    event(out, "response.output_text.done", place() + R"(,"text":)" + text + R"(,"logprobs":[])");
    event(out, "response.content_part.done", place() + R"(,"part":)" + part(text));
    event(out, "response.output_item.done", R"("output_index":0,"item":)" + item(ended(), part(text)));
  }

  void close_stream(std::string& out, const Usage& usage, bool) override {
    const std::string response = finished(usage);
    event(out, complete_ ? "response.completed" : "response.incomplete", R"("response":)" + response);
    keep(response);
  }

  void stream_error(std::string& out, const ApiError& error, std::string_view) override {
    std::string said;
    JsonWriter w(said);
    w.begin_object().key("code").string("server_error").key("message").string(error.error.message).end_object();
    event(out, "response.failed", R"("response":)" + object("failed", "", nullptr, said));
  }

  void usage(std::string&, const Usage&) override {}  // comes with response.completed

  void begin_whole(std::string&) override {}
  void whole_choice(std::string&, const ChoiceView& view, const ChoiceDelta& delta) override {
    text_ = delta.text;
    complete_ = view.choice.finish() == FinishReason::stop;
  }
  void end_whole(std::string& out, const Usage& usage, const Timings&) override {
    const std::string response = finished(usage);
    out += response;
    keep(response);
  }

 private:
  void event(std::string& out, std::string_view name, const std::string& members) {
    out.append("event: ").append(name).append("\ndata: {\"type\":\"").append(name).append("\",");
    out += R"("sequence_number":)" + std::to_string(sequence_++) + "," + members + "}\n\n";
  }

  void open(std::string& out) {
    const std::string response = R"("response":)" + object("in_progress", "", nullptr, "null");
    event(out, "response.created", response);
    event(out, "response.in_progress", response);
    event(out, "response.output_item.added", R"("output_index":0,"item":)" + item("in_progress", ""));
    event(out, "response.content_part.added", place() + R"(,"part":)" + part(R"("")"));
  }

  std::string place() const { return R"("item_id":")" + item_id_ + R"(","output_index":0,"content_index":0)"; }
  static std::string part(const std::string& text) {
    return R"({"type":"output_text","text":)" + text + R"(,"annotations":[],"logprobs":[]})";
  }
  std::string item(std::string_view status, const std::string& content) const {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("id").string(item_id_).key("type").string("message").key("status").string(status);
    w.key("role").string("assistant").key("content").raw("[" + content + "]").end_object();
    return out;
  }
  const char* ended() const { return complete_ ? "completed" : "incomplete"; }

  std::string finished(const Usage& usage) const {
    std::string text;
    append_json_string(text, text_);
    return object(ended(), item(ended(), part(text)), &usage, "null");
  }

  // The response object. `output`: its items; `error`: JSON.
  std::string object(std::string_view status, const std::string& output, const Usage* usage,
                     std::string_view error) const {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("id").string(id_).key("object").string("response").key("created_at").integer(created_);
    w.key("status").string(status).key("background").boolean(false).key("error").raw(error);
    w.key("incomplete_details");
    if (status == "incomplete")
      w.begin_object().key("reason").string("max_output_tokens").end_object();
    else
      w.null();
    w.key("instructions").raw(request_.instructions).key("max_output_tokens");
    if (max_tokens_)
      w.integer(*max_tokens_);
    else
      w.null();
    w.key("model")
        .string(model_)
        .key("output")
        .raw("[" + output + "]")
        .key("parallel_tool_calls")
        .boolean(true);
    w.key("previous_response_id");
    if (request_.previous.empty())
      w.null();
    else
      w.string(request_.previous);
    w.key("reasoning").raw(R"({"effort":null,"summary":null})").key("service_tier").string("default");
    w.key("store").boolean(keep_.store != nullptr).key("temperature").number(temperature_);
    w.key("text").raw(R"({"format":{"type":"text"}})").key("tool_choice").string("auto").key("tools").raw("[]");
    w.key("top_logprobs")
        .integer(0)
        .key("top_p")
        .number(top_p_)
        .key("truncation")
        .string("disabled")
        .key("usage");
    write_usage(w, usage);
    w.key("user").raw(request_.user).key("metadata").raw(request_.metadata).end_object();
    return out;
  }

  static void write_usage(JsonWriter& w, const Usage* u) {
    if (u == nullptr) {
      w.null();
      return;
    }
    w.begin_object().key("input_tokens").integer(u->prompt_tokens).key("input_tokens_details").begin_object();
    w.key("cached_tokens").integer(u->cached_tokens).end_object();
    w.key("output_tokens").integer(u->completion_tokens).key("output_tokens_details").begin_object();
    w.key("reasoning_tokens").integer(0).end_object();
    w.key("total_tokens").integer(int64_t(u->prompt_tokens) + u->completion_tokens).end_object();
  }

  void keep(const std::string& response) const {
    if (keep_.store == nullptr) return;
    MessageWriter writer;
    writer.new_turn("assistant");
    writer.add_text(text_);
    keep_.store->put(id_, keep_.owner, {response, keep_.before + "," + writer.take()});
  }

  const std::string id_, item_id_, model_;
  const int64_t created_;
  const float temperature_, top_p_;
  const std::optional<int> max_tokens_;
  const ResponsesRequest request_;
  const Keep keep_;
  std::string text_;
  bool complete_ = true;
  int sequence_ = 0;
};

}  // namespace

ApiFailure prepare_responses(std::string_view body, const ApiCall& call, PreparedGeneration& out) {
  auto parsed = parse_responses_request(body, bounds_of(call));
  if (!parsed.ok()) return api_error(parsed.error());
  ResponsesRequest& request = *parsed;
  std::string before;
  if (!request.previous.empty()) {
    const auto stored =
        call.responses != nullptr ? call.responses->find(request.previous, call.tenant) : nullptr;
    if (stored == nullptr) {
      return ApiError{
          {ErrorCode::kNotFound,
           "There is no such response: it was made without 'store': true, by another key, or has been "
           "dropped since.",
           "previous_response_id"},
          "previous_response_not_found"};
    }
    before = stored->messages;
  }
  request.chat.messages = request.messages_of(before);
  request.chat.continue_final_message = false;  // an answer is always an item of its own
  if (ApiFailure failure = plan_chat(request.chat, call, "resp_" + random_id(), out.plan)) {
    if (failure->error.field == "messages") failure->error.field = "input";
    return failure;
  }
  Keep keep;
  if (request.store) keep = {call.responses, call.tenant, before + (before.empty() ? "" : ",") + request.input};
  out.format = std::make_unique<ResponsesFormat>(out.plan, std::move(request), std::move(keep));
  return std::nullopt;
}

}  // namespace sluice
