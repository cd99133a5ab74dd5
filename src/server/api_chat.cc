// POST /v1/chat/completions and /apply-template.
#include "server/answer_json.h"
#include "server/chat_plan.h"
#include "server/sse.h"

namespace sluice {

namespace {

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(const Tokenizer& tokenizer, const GenerationPlan& plan, bool logprobs, int top_logprobs)
      : tokenizer_(tokenizer), options_(plan.options), logprobs_(logprobs), top_logprobs_(top_logprobs) {
    JsonWriter w(head_);
    w.begin_object();
    w.key("id").string(plan.id).key("object").string(plan.options.stream ? "chat.completion.chunk"
                                                                         : "chat.completion");
    w.key("created")
        .integer(plan.created)
        .key("model")
        .string(plan.model)
        .key("system_fingerprint")
        .string(kSystemFingerprint);
  }

  void piece(std::string& out, const ChoiceView& view, const ChoiceDelta& delta,
             const Timings& timings) override {
    if (view.first) write_chunk(out, view, Part::role, {}, {});
    if (has_content(delta)) write_chunk(out, view, Part::content, delta, {});
    for (const ToolCallPiece& call : delta.calls) {
      if (call.name.empty() && call.arguments.empty()) continue;
      write_call_chunk(out, view, call);
    }
    if (view.choice.ended()) write_chunk(out, view, Part::finish, delta, timings);
  }

  void usage(std::string& out, const Usage& usage) override {
    out += "data: ";
    out += head_;
    out += R"(,"choices":[],"usage":)";
    JsonWriter w(out);
    append_usage(w, usage);
    out += "}\n\n";
  }

  void begin_whole(std::string& out) override {
    out += head_;
    out += R"(,"choices":[)";
    first_choice_ = true;
  }

  void whole_choice(std::string& out, const ChoiceView& view, const ChoiceDelta& delta) override {
    if (!first_choice_) out += ',';
    first_choice_ = false;
    JsonWriter w(out);
    w.begin_object().key("index").integer(view.choice.index()).key("message").begin_object();
    w.key("role").string("assistant").key("content");
    if (delta.text.empty() && !delta.calls.empty())
      w.null();
    else
      w.string(delta.text);
    w.key("refusal").null();
    if (!delta.thoughts.empty()) w.key("reasoning_content").string(delta.thoughts);
    if (!delta.calls.empty()) write_calls(w, delta);
    w.end_object();
    w.key("logprobs");
    write_logprobs(w, delta);
    write_finish(w, view.choice, view.choice.finish());
    if (options_.return_token_ids) {
      write_token_ids(w, delta);
      prompt_token_ids_ = &view.prompt.ids;
    }
    w.end_object();
  }

  void end_whole(std::string& out, const Usage& usage, const Timings& timings) override {
    out += ']';
    std::string tail;
    JsonWriter w(tail);
    append_usage(w.key("usage"), usage);
    if (prompt_token_ids_ != nullptr) w.key("prompt_token_ids").integers(*prompt_token_ids_);
    append_timings(w, timings);
    out += ',';
    out += tail;
    out += '}';
  }

 private:
  enum class Part { role, content, finish };

  void write_chunk(std::string& out, const ChoiceView& view, Part part, const ChoiceDelta& delta,
                   const Timings& timings) {
    out += "data: ";
    out += head_;
    out += R"(,"choices":[)";
    JsonWriter w(out);
    w.begin_object().key("index").integer(view.choice.index()).key("delta").begin_object();
    if (part == Part::role) w.key("role").string("assistant").key("content").string("");
    if (part == Part::content && !delta.thoughts.empty()) w.key("reasoning_content").string(delta.thoughts);
    if (part == Part::content && (delta.thoughts.empty() || !delta.text.empty()))
      w.key("content").string(delta.text);
    w.end_object();
    w.key("logprobs");
    if (part == Part::content)
      write_logprobs(w, delta);
    else
      w.null();
    write_finish(w, view.choice, part == Part::finish ? view.choice.finish() : FinishReason::none);
    // Ids travel with their text; the end token has none and comes with the finish.
    if (options_.return_token_ids && part != Part::role) {
      const bool content_came = has_content(delta);
      w.key("token_ids").begin_array();
      for (const ShownToken& token : delta.tokens) {
        const bool now =
            content_came && !token.ends ? part == Part::content : part == Part::finish || !view.choice.ended();
        if (now) w.integer(token.id);
      }
      w.end_array();
    }
    w.end_object();
    out += ']';
    std::string tail;
    JsonWriter more(tail);
    if (part == Part::role && options_.return_token_ids) more.key("prompt_token_ids").integers(view.prompt.ids);
    if (part == Part::finish) append_timings(more, timings);
    if (!tail.empty()) out += ',';
    out += tail;
    out += "}\n\n";
  }

  // One piece of a call: its id and name first, then its arguments as they come.
  void write_call_chunk(std::string& out, const ChoiceView& view, const ToolCallPiece& call) {
    out += "data: ";
    out += head_;
    out += R"(,"choices":[)";
    JsonWriter w(out);
    w.begin_object().key("index").integer(view.choice.index()).key("delta").begin_object();
    w.key("tool_calls").begin_array().begin_object().key("index").integer(call.index);
    if (!call.name.empty()) w.key("id").string("call_" + random_id()).key("type").string("function");
    w.key("function").begin_object();
    if (!call.name.empty()) w.key("name").string(call.name);
    w.key("arguments").string(call.arguments).end_object().end_object().end_array().end_object();
    w.key("logprobs").null();
    write_finish(w, view.choice, FinishReason::none);
    w.end_object();
    out += "]}\n\n";
  }

  static void write_calls(JsonWriter& w, const ChoiceDelta& delta) {
    w.key("tool_calls").begin_array();
    for (const AnswerPart& part : parts_of(delta)) {
      if (!part.is_call) continue;
      w.begin_object().key("id").string("call_" + random_id()).key("type").string("function");
      w.key("function").begin_object().key("name").string(part.name).key("arguments").string(part.text);
      w.end_object().end_object();
    }
    w.end_array();
  }

  bool has_content(const ChoiceDelta& delta) const {
    return !delta.thoughts.empty() || !delta.text.empty() || (logprobs_ && has_shown(delta));
  }

  static bool has_shown(const ChoiceDelta& delta) {
    for (const ShownToken& token : delta.tokens) {
      if (!token.ends) return true;
    }
    return false;
  }

  static void write_finish(JsonWriter& w, const Choice& choice, FinishReason finish) {
    w.key("finish_reason");
    append_finish_reason(w, finish, choice.called());
    w.key("stop_reason");
    if (finish == FinishReason::none)
      w.null();
    else
      append_stop_reason(w, choice);
  }

  static void write_token_ids(JsonWriter& w, const ChoiceDelta& delta) {
    w.key("token_ids").begin_array();
    for (const ShownToken& token : delta.tokens) w.integer(token.id);
    w.end_array();
  }

  // The end token is no part of the content, so it has no entry: the entries' bytes joined give the content.
  void write_logprobs(JsonWriter& w, const ChoiceDelta& delta) {
    if (!logprobs_) {
      w.null();
      return;
    }
    w.begin_object().key("content").begin_array();
    for (const ShownToken& token : delta.tokens) {
      if (token.ends) continue;
      w.begin_object();
      write_entry(w, token.id, token.logprobs.logprob);
      w.key("top_logprobs").begin_array();
      for (int i = 0; i < std::min(token.logprobs.count, top_logprobs_); ++i) {
        w.begin_object();
        write_entry(w, token.logprobs.ids[i], token.logprobs.values[i]);
        w.end_object();
      }
      w.end_array().end_object();
    }
    w.end_array().key("refusal").null().end_object();
  }

  void write_entry(JsonWriter& w, int32_t id, float logprob) {
    w.key("token").string(name_token(name_, tokenizer_, id, options_.tokens_as_ids));
    w.key("logprob").number(logprob).key("bytes");
    if (tokenizer_.is_control(id) && !options_.show_control) {
      w.null();
      return;
    }
    w.begin_array();
    for (const char c : tokenizer_.piece(id, ControlText::kShow)) w.integer(static_cast<unsigned char>(c));
    w.end_array();
  }

  const Tokenizer& tokenizer_;
  const GenerationOptions options_;
  const bool logprobs_;
  const int top_logprobs_;
  std::string head_;  // the object up to "choices"
  std::string name_;  // of the token that is written
  const std::vector<int32_t>* prompt_token_ids_ = nullptr;
  bool first_choice_ = true;
};

}  // namespace

ApiFailure prepare_chat(std::string_view body, const ApiCall& call, PreparedGeneration& out) {
  auto request = parse_chat_request(body, bounds_of(call));
  if (!request.ok()) return api_error(request.error());
  const bool logprobs = request->logprobs;
  const int top_logprobs = request->top_logprobs;
  if (ApiFailure failure = plan_chat(*request, call, "chatcmpl-" + random_id(), out.plan)) return failure;
  out.format = std::make_unique<ChatFormat>(call.model.tokenizer(), out.plan, logprobs, top_logprobs);
  return std::nullopt;
}

HttpResponse apply_template(std::string_view body, const ApiCall& call) {
  auto request = parse_chat_request(body, bounds_of(call));
  if (!request.ok()) return error_response(api_error(request.error()));
  std::string prompt;
  if (ApiFailure failure = render_prompt(*request, call, prompt)) return error_response(*failure);
  HttpResponse response;
  response.headers = headers_of(request->options);
  JsonWriter w(response.body);
  w.begin_object().key("prompt").string(prompt).end_object();
  return response;
}

}  // namespace sluice
