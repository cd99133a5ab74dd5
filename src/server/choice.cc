#include "server/choice.h"

#include <algorithm>

namespace sluice {

int code_points(std::string_view text) {
  return int(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<AnswerPart> parts_of(const ChoiceDelta& whole) {
  std::vector<AnswerPart> parts;
  in_order(
      whole,
      [&](std::string_view text) {
        parts.push_back({false, "", std::string(text)});
      },
      [&](const ToolCallPiece& piece) {
        if (!piece.name.empty()) parts.push_back({true, piece.name, ""});
        parts.back().text += piece.arguments;
      });
  return parts;
}

Choice::Choice(int index, const Tokenizer& tokenizer, const GenerationOptions& options, bool keep_tokens,
               int first_offset)
    : index_(index),
      tokenizer_(&tokenizer),
      detokenizer_(tokenizer, Detokenizer::Start::kContinuation,
                   options.show_control ? ControlText::kShow : ControlText::kHide),
      matcher_(options.stop,
               options.include_stop_text ? StopMatcher::StopText::kInclude : StopMatcher::StopText::kLeaveOut),
      reasons_(options.reasoning != Reasoning::none),
      reasoning_(options.reasoning),
      tool_format_(options.tool_format),
      one_call_(options.one_call),
      calls_alone_(options.inside_call),
      tools_(options.tool_format, options.inside_call),
      client_stop_ids_(options.stop_ids),
      keep_tokens_(keep_tokens),
      show_control_(options.show_control),
      min_tokens_(options.min_tokens),
      made_chars_(first_offset) {}

bool Choice::push(const TokenEvent& event) {
  drop_taken();
  if (event.id >= 0) {
    ++completion_tokens_;
    const bool thought = reasoning_.thinking();
    last_time_ = event.time;
    if (first_time_ == 0) first_time_ = event.time;
    const bool ends = event.finish == FinishReason::stop;
    if (keep_tokens_) {
      const bool hidden = !show_control_ && tokenizer_->is_control(event.id);
      waiting_.push_back({{event.id, made_chars_, ends, hidden, event.logprobs}, made_bytes_});
    }
    // An end token has no text, except where the client asks for what ended the answer.
    if (!ends) {
      made_.clear();
      append_text(event.id, made_);
      feed(made_);
    }
    reasoning_tokens_ += thought || reasoning_.thinking();
  }
  if (matcher_.stopped()) {
    finish_ = FinishReason::stop;
    give_end();
    release(false);
    waiting_.clear();
    return true;
  }
  if (one_call_ && !delta_.calls.empty() && delta_.calls.back().complete) {
    finish_ = FinishReason::stop;
    release(true);
    return true;
  }
  if (event.finish != FinishReason::none) {
    finish_text();
    finish_ = matcher_.stopped() ? FinishReason::stop : event.finish;
    const auto& ids = client_stop_ids_;
    if (event.finish == FinishReason::stop && std::find(ids.begin(), ids.end(), event.stop_id) != ids.end())
      stop_id_ = event.stop_id;
    return true;
  }
  release(false);
  return false;
}

void Choice::feed(std::string_view text) {
  made_bytes_ += text.size();
  made_chars_ += code_points(text);
  // Stop strings count only once min_tokens are there, as end tokens do.
  if (completion_tokens_ <= min_tokens_ && min_tokens_ != 0) return give(text);
  passed_.clear();
  matcher_.push(text, passed_);
  give(passed_);
}

// What may be sent.
void Choice::give(std::string_view text) {
  released_bytes_ += text.size();
  if (!reasons_) return tools_.push(text, delta_.text, delta_.calls);
  answer_.clear();
  reasoning_.push(text, delta_.thoughts, answer_);
  tools_.push(answer_, delta_.text, delta_.calls);
}

void Choice::give_end() {
  answer_.clear();
  reasoning_.finish(delta_.thoughts, answer_);
  tools_.push(answer_, delta_.text, delta_.calls);
  tools_.finish(delta_.text, delta_.calls);
}

// Marks of thoughts and of tool calls are read even where control tokens are hidden.
void Choice::append_text(int32_t id, std::string& out) {
  if ((reasons_ || tool_format_ != ToolFormat::none) && !show_control_ && tokenizer_->is_control(id)) {
    const std::string_view shown = tokenizer_->piece(id, ControlText::kShow);
    const bool of_thoughts = reasons_ && (shown == kThoughtOpen || shown == kThoughtClose);
    if (of_thoughts || is_tool_marker(tool_format_, shown)) {
      detokenizer_.finish(out);
      out += shown;
      return;
    }
  }
  detokenizer_.push(id, out);
}

void Choice::finish_text() {
  made_.clear();
  detokenizer_.finish(made_);
  feed(made_);
  if (!matcher_.stopped()) {
    passed_.clear();
    matcher_.finish(passed_);
    give(passed_);
  }
  give_end();
  // An end token begins after all text: its offset was taken before the detokenizer gave up what it held.
  if (!waiting_.empty() && waiting_.back().token.ends) waiting_.back().token.text_offset = made_chars_;
  release(!matcher_.stopped());
  waiting_.clear();
}

void Choice::release(bool all) {
  auto waiting = waiting_.begin();
  for (; waiting != waiting_.end() && (all || waiting->begin < released_bytes_); ++waiting)
    delta_.tokens.push_back(waiting->token);
  waiting_.erase(waiting_.begin(), waiting);
}

void Choice::drop_taken() {
  if (taken_) delta_.clear();
  taken_ = false;
}

const ChoiceDelta& Choice::take() {
  drop_taken();
  if (calls_alone_) delta_.text.clear();
  taken_ = true;
  return delta_;
}

}  // namespace sluice
