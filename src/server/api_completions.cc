// POST /v1/completions.
#include <algorithm>

#include "server/answer_json.h"
#include "server/api.h"
#include "server/completion_request.h"
#include "server/sse.h"
#include "text/utf8.h"

namespace sluice {

namespace {

// The four parallel arrays of log-probabilities. Prompt tokens come first where they are echoed; the very first
// token of a prompt has no probability, which is null.
struct LogprobArrays {
  std::string tokens, token_logprobs, top_logprobs, text_offset;
  void clear() { tokens.clear(), token_logprobs.clear(), top_logprobs.clear(), text_offset.clear(); }
};

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(const Tokenizer& tokenizer, const GenerationPlan& plan, int logprobs)
      : tokenizer_(tokenizer), plan_options_(plan.options), echo_(plan.echo), logprobs_(logprobs) {
    JsonWriter w(head_);
    w.begin_object();
    w.key("id").string(plan.id).key("object").string("text_completion").key("created").integer(plan.created);
    w.key("model").string(plan.model).key("system_fingerprint").string(kSystemFingerprint);
  }

  void piece(std::string& out, const ChoiceView& view, const ChoiceDelta& delta,
             const Timings& timings) override {
    out += "data: ";
    out += head_;
    out += R"(,"choices":[)";
    write_choice(out, view, delta, view.first);
    out += ']';
    finish_object(out, nullptr, timings);
    out += "\n\n";
  }

  void usage(std::string& out, const Usage& usage) override {
    out += "data: ";
    out += head_;
    out += R"(,"choices":[])";
    finish_object(out, &usage, {});
    out += "\n\n";
  }

  void begin_whole(std::string& out) override {
    out += head_;
    out += R"(,"choices":[)";
    first_choice_ = true;
  }

  void whole_choice(std::string& out, const ChoiceView& view, const ChoiceDelta& delta) override {
    if (!first_choice_) out += ',';
    first_choice_ = false;
    write_choice(out, view, delta, true);
  }

  void end_whole(std::string& out, const Usage& usage, const Timings& timings) override {
    out += ']';
    finish_object(out, &usage, timings);
  }

 private:
  static void finish_object(std::string& out, const Usage* usage, const Timings& timings) {
    std::string tail;
    JsonWriter w(tail);
    if (usage != nullptr) append_usage(w.key("usage"), *usage);
    append_timings(w, timings);
    if (!tail.empty()) out += ',';
    out += tail;
    out += '}';
  }

  void write_choice(std::string& out, const ChoiceView& view, const ChoiceDelta& delta, bool first) {
    JsonWriter w(out);
    w.begin_object().key("index").integer(view.choice.index()).key("text");
    if (echo_ && first)
      w.string(view.prompt.text + delta.text);
    else
      w.string(delta.text);
    w.key("logprobs");
    if (logprobs_ < 0)
      w.null();
    else
      write_logprobs(w, view, delta, first);
    w.key("finish_reason");
    append_finish_reason(w, view.choice.finish());
    w.key("stop_reason");
    append_stop_reason(w, view.choice);
    if (plan_options_.return_token_ids) {
      w.key("token_ids").begin_array();
      for (const ShownToken& token : delta.tokens) w.integer(token.id);
      w.end_array();
      if (first) w.key("prompt_token_ids").integers(view.prompt.ids);
    }
    w.end_object();
  }

  void write_logprobs(JsonWriter& w, const ChoiceView& view, const ChoiceDelta& delta, bool first) {
    arrays_.clear();
    JsonWriter tokens(arrays_.tokens), values(arrays_.token_logprobs), tops(arrays_.top_logprobs),
        offsets(arrays_.text_offset);
    const auto add = [&](int32_t id, const TokenLogprobs* logprobs, int offset) {
      tokens.string(name_token(name_, tokenizer_, id, plan_options_.tokens_as_ids));
      offsets.integer(offset);
      if (logprobs == nullptr) {
        values.null();
        tops.null();
      } else {
        values.number(logprobs->logprob);
        write_top(tops, id, *logprobs);
      }
    };
    if (echo_ && first) {
      const auto& prompt_logprobs = view.stream.prompt_logprobs();
      for (size_t i = 0; i < view.prompt.ids.size(); ++i) {
        const TokenLogprobs* logprobs =
            i > 0 && i - 1 < prompt_logprobs.size() ? &prompt_logprobs[i - 1] : nullptr;
        add(view.prompt.ids[i], logprobs, view.prompt.id_offsets[i]);
      }
    }
    for (const ShownToken& token : delta.tokens) add(token.id, &token.logprobs, token.text_offset);
    w.begin_object();
    w.key("tokens").begin_array().raw(arrays_.tokens).end_array();
    w.key("token_logprobs").begin_array().raw(arrays_.token_logprobs).end_array();
    w.key("top_logprobs").begin_array().raw(arrays_.top_logprobs).end_array();
    w.key("text_offset").begin_array().raw(arrays_.text_offset).end_array();
    w.end_object();
  }

  // The likeliest tokens by name, and the chosen one where it is not among them. Names of two tokens can be the
  // same; the likelier one stays.
  void write_top(JsonWriter& w, int32_t chosen, const TokenLogprobs& logprobs) {
    size_t count = 0;
    w.begin_object();
    const auto add = [&](int32_t id, float value) {
      if (count == top_names_.size()) top_names_.emplace_back();
      const std::string& name = name_token(top_names_[count], tokenizer_, id, plan_options_.tokens_as_ids);
      if (std::find(top_names_.begin(), top_names_.begin() + ptrdiff_t(count), name) !=
          top_names_.begin() + ptrdiff_t(count))
        return;
      w.key(name).number(value);
      ++count;
    };
    for (int i = 0; i < std::min(logprobs.count, logprobs_); ++i) add(logprobs.ids[i], logprobs.values[i]);
    add(chosen, logprobs.logprob);
    w.end_object();
  }

  const Tokenizer& tokenizer_;
  const GenerationOptions plan_options_;
  const bool echo_;
  const int logprobs_;
  std::string head_;  // the object up to "choices"
  // Of the tokens that are written; kept for their memory.
  LogprobArrays arrays_;
  std::string name_;
  std::vector<std::string> top_names_;
  bool first_choice_ = true;
};

// Where each prompt token's text begins, in code points of the echoed text.
std::vector<int32_t> offsets_of(const Tokenizer& tokenizer, const Prompt& prompt) {
  Detokenizer detokenizer(tokenizer, Detokenizer::Start::kText);
  const int end = code_points(prompt.text);
  std::vector<int32_t> offsets;
  std::string text;
  int at = 0;
  for (const int32_t id : prompt.ids) {
    offsets.push_back(std::min(at, end));
    text.clear();
    detokenizer.push(id, text);
    at += code_points(text);
  }
  return offsets;
}

}  // namespace

ApiFailure prepare_completions(std::string_view body, const ApiCall& call, PreparedGeneration& out) {
  auto request = parse_completion_request(body, bounds_of(call));
  if (!request.ok()) return api_error(request.error());
  const TimeNs parsed = now_ns();
  if (ApiFailure failure = check_model(request->options, call)) return failure;
  const Tokenizer& tokenizer = call.model.tokenizer();
  GenerationPlan plan = plan_of(call, std::move(request->options), "cmpl-" + random_id());
  plan.arrival.parsed = parsed;
  plan.echo = request->echo;
  plan.default_max_tokens = 16;
  plan.keep_tokens = request->logprobs >= 0 || plan.options.return_token_ids;
  plan.sampling.top_logprobs = request->logprobs;
  plan.sampling.prompt_top_logprobs = request->echo ? request->logprobs : -1;
  for (PromptInput& input : request->prompts) {
    Prompt prompt;
    if (auto* text = std::get_if<std::string>(&input)) {
      if (ApiFailure failure = check_text(text->size(), call, "prompt")) return failure;
      prompt.ids = encode_prompt(tokenizer, *text, request->add_special_tokens);
      if (plan.echo) prompt.text = std::move(*text);
    } else {
      prompt.ids = std::get<std::vector<int32_t>>(std::move(input));
      if (plan.echo) prompt.text = replace_invalid_utf8(tokenizer.decode(prompt.ids));
    }
    if (ApiFailure failure = check_prompt(prompt.ids, call, "prompt")) return failure;
    if (plan.echo && request->logprobs >= 0) prompt.id_offsets = offsets_of(tokenizer, prompt);
    plan.prompts.push_back(std::move(prompt));
  }
  out.format = std::make_unique<CompletionFormat>(tokenizer, plan, request->logprobs);
  out.plan = std::move(plan);
  return std::nullopt;
}

}  // namespace sluice
