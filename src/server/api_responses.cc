// POST /v1/responses, as OpenAI's Responses API has it.
#include "server/answer_json.h"
#include "server/chat_plan.h"
#include "server/response_store.h"
#include "server/responses_output.h"
#include "server/responses_request.h"

namespace sluice {

namespace {

struct Keep {
  ResponseStore* store = nullptr;  // null: the response is not kept
  uint32_t owner = 0;
  std::string before;  // the conversation up to this answer, without instructions
  bool has_calls = false;
};

class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(const GenerationPlan& plan, ResponsesRequest request, Keep keep)
      : id_(plan.id),
        model_(plan.model),
        created_(plan.created),
        temperature_(plan.sampling.temperature),
        top_p_(plan.sampling.top_p),
        max_tokens_(plan.options.max_tokens),
        request_(std::move(request)),
        keep_(std::move(keep)),
        output_(plan.options.stream) {}

  void piece(std::string& out, const ChoiceView& view, const ChoiceDelta& delta, const Timings&) override {
    if (view.first) {
      const std::string response = R"("response":)" + object("in_progress", "", nullptr, "null");
      output_.event(out, "response.created", response);
      output_.event(out, "response.in_progress", response);
    }
    take(out, view, delta);
  }

  void close_stream(std::string& out, const Usage& usage, bool) override {
    const std::string response = object(ended(), output_.items(), &usage, "null");
    output_.event(out, complete_ ? "response.completed" : "response.incomplete", R"("response":)" + response);
    keep(response);
  }

  void stream_error(std::string& out, const ApiError& error, std::string_view) override {
    std::string said;
    JsonWriter w(said);
    w.begin_object().key("code").string("server_error").key("message").string(error.error.message).end_object();
    output_.event(out, "response.failed", R"("response":)" + object("failed", "", nullptr, said));
  }

  void usage(std::string&, const Usage&) override {}  // comes with response.completed

  void begin_whole(std::string&) override {}
  void whole_choice(std::string& out, const ChoiceView& view, const ChoiceDelta& delta) override {
    take(out, view, delta);
  }
  void end_whole(std::string& out, const Usage& usage, const Timings&) override {
    const std::string response = object(ended(), output_.items(), &usage, "null");
    out += response;
    keep(response);
  }

 private:
  void take(std::string& out, const ChoiceView& view, const ChoiceDelta& delta) {
    output_.add(out, delta);
    if (!view.choice.ended()) return;
    complete_ = view.choice.finish() == FinishReason::stop;
    output_.end(out, complete_);
  }

  const char* ended() const { return complete_ ? "completed" : "incomplete"; }

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
        .boolean(request_.chat.tools.parallel);
    w.key("previous_response_id");
    if (request_.previous.empty())
      w.null();
    else
      w.string(request_.previous);
    w.key("reasoning").raw(R"({"effort":null,"summary":null})").key("service_tier").string("default");
    w.key("store").boolean(keep_.store != nullptr).key("temperature").number(temperature_);
    w.key("text").begin_object().key("format").raw(request_.text_format).end_object();
    w.key("tool_choice").raw(request_.tool_choice).key("tools").raw(request_.tools);
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
    w.key("reasoning_tokens").integer(u->reasoning_tokens).end_object();
    w.key("total_tokens").integer(int64_t(u->prompt_tokens) + u->completion_tokens).end_object();
  }

  void keep(const std::string& response) const {
    if (keep_.store == nullptr) return;
    const std::string said = output_.as_message();
    keep_.store->put(
        id_, keep_.owner,
        {response, keep_.before + (said.empty() ? "" : "," + said), keep_.has_calls || output_.has_calls()});
  }

  const std::string id_, model_;
  const int64_t created_;
  const float temperature_, top_p_;
  const std::optional<int> max_tokens_;
  const ResponsesRequest request_;
  const Keep keep_;
  ResponsesOutput output_;
  bool complete_ = true;
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
    request.chat.has_calls = request.chat.has_calls || stored->has_calls;
  }
  request.chat.messages = request.messages_of(before);
  request.chat.continue_final_message = false;  // an answer is always an item of its own
  if (ApiFailure failure = plan_chat(request.chat, call, "resp_" + random_id(), out.plan)) {
    if (failure->error.field == "messages") failure->error.field = "input";
    return failure;
  }
  Keep keep;
  if (request.store)
    keep = {call.responses, call.tenant, before + (before.empty() ? "" : ",") + request.input,
            request.chat.has_calls};
  out.format = std::make_unique<ResponsesFormat>(out.plan, std::move(request), std::move(keep));
  return std::nullopt;
}

}  // namespace sluice
