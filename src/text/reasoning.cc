#include "text/reasoning.h"

namespace sluice {

namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

size_t leading_space(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_space(text[n])) ++n;
  return n;
}

}  // namespace

bool template_shows_reasoning(std::string_view source) { return source.find(kThoughtClose) != source.npos; }

ReasoningParser::ReasoningParser(Reasoning reasoning)
    : state_(reasoning == Reasoning::none     ? State::answer
             : reasoning == Reasoning::begins ? State::before
                                              : State::thinking) {}

void ReasoningParser::push(std::string_view text, std::string& thoughts, std::string& answer) {
  size_t at = 0;
  while (at < text.size() && state_ != State::answer) byte(text[at++], thoughts, answer);
  answer.append(text.substr(at));
}

void ReasoningParser::byte(char c, std::string& thoughts, std::string& answer) {
  if (state_ == State::after) {
    if (is_space(c)) return;
    state_ = State::answer;
    answer += c;
    return;
  }
  blank_ += blank_ == held_.size() && is_space(c);
  held_ += c;
  const std::string_view mark = state_ == State::before ? kThoughtOpen : kThoughtClose;
  for (;;) {
    const std::string_view rest = std::string_view(held_).substr(blank_);
    if (rest == mark) {
      held_.clear(), blank_ = 0;
      state_ = state_ == State::before ? State::thinking : State::after;
      return;
    }
    if (mark.starts_with(rest)) return;
    if (state_ == State::before) {
      state_ = State::answer;
      answer += held_;
      held_.clear(), blank_ = 0;
      return;
    }
    // No mark begins here: the first byte after the white space is thought, and the search goes on behind it.
    thoughts.append(held_, thought_ ? 0 : blank_, thought_ ? blank_ + 1 : 1);
    thought_ = true;
    held_.erase(0, blank_ + 1);
    blank_ = leading_space(held_);
  }
}

void ReasoningParser::finish(std::string& thoughts, std::string& answer) {
  if (state_ == State::before) answer += held_;
  // A closing mark that was begun was none; white space alone is nobody's.
  if (state_ == State::thinking && blank_ < held_.size()) thoughts.append(held_, thought_ ? 0 : blank_);
  held_.clear(), blank_ = 0;
  state_ = State::answer;
}

}  // namespace sluice
