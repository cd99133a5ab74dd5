#include "server/choice.h"

#include <algorithm>

namespace sluice {

int code_points(std::string_view text) {
  return int(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

Choice::Choice(int index, const Tokenizer& tokenizer, const GenerationOptions& options, bool keep_tokens,
               int first_offset)
    : index_(index),
      tokenizer_(&tokenizer),
      detokenizer_(tokenizer, Detokenizer::Start::kContinuation,
                   options.show_control ? ControlText::kShow : ControlText::kHide),
      matcher_(options.stop,
               options.include_stop_text ? StopMatcher::StopText::kInclude : StopMatcher::StopText::kLeaveOut),
      client_stop_ids_(options.stop_ids),
      keep_tokens_(keep_tokens),
      show_control_(options.show_control),
      min_tokens_(options.min_tokens),
      made_chars_(first_offset) {}

bool Choice::push(const TokenEvent& event) {
  if (event.id >= 0) {
    ++completion_tokens_;
    last_time_ = event.time;
    if (first_time_ == 0) first_time_ = event.time;
    const bool ends = event.finish == FinishReason::stop;
    if (keep_tokens_) {
      const bool hidden = !show_control_ && tokenizer_->is_control(event.id);
      waiting_.push_back({{event.id, made_chars_, ends, hidden, event.logprobs}, made_bytes_});
    }
    // An end token has no text, except where the client asks for what ended the answer.
    if (!ends) feed(detokenizer_.push(event.id));
  }
  if (matcher_.stopped()) {
    finish_ = FinishReason::stop;
    release(false);
    waiting_.clear();
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

void Choice::feed(const std::string& text) {
  made_bytes_ += text.size();
  made_chars_ += code_points(text);
  // Stop strings count only once min_tokens are there, as end tokens do.
  const std::string out = completion_tokens_ > min_tokens_ || min_tokens_ == 0 ? matcher_.push(text) : text;
  released_bytes_ += out.size();
  delta_.text += out;
}

void Choice::finish_text() {
  feed(detokenizer_.finish());
  if (!matcher_.stopped()) {
    const std::string held = matcher_.finish();
    released_bytes_ += held.size();
    delta_.text += held;
  }
  // An end token begins after all text: its offset was taken before the detokenizer gave up what it held.
  if (!waiting_.empty() && waiting_.back().token.ends) waiting_.back().token.text_offset = made_chars_;
  release(!matcher_.stopped());
  waiting_.clear();
}

void Choice::release(bool all) {
  while (!waiting_.empty() && (all || waiting_.front().begin < released_bytes_)) {
    delta_.tokens.push_back(std::move(waiting_.front().token));
    waiting_.pop_front();
  }
}

ChoiceDelta Choice::take() {
  ChoiceDelta delta = std::move(delta_);
  delta_ = {};
  return delta;
}

}  // namespace sluice
