#include "text/detokenizer.h"

#include "text/utf8.h"

namespace sluice {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, Start start, ControlText control)
    : tokenizer_(&tokenizer),
      control_(control),
      strip_space_(start == Start::kText && tokenizer.strips_leading_space()) {}

std::string Detokenizer::push(int32_t id) {
  std::string_view piece = tokenizer_->piece(id, control_);
  if (strip_space_ && !piece.empty()) {
    if (piece[0] == ' ' && !tokenizer_->is_control(id)) piece.remove_prefix(1);
    strip_space_ = false;
  }
  held_ += piece;
  const size_t tail = utf8_incomplete_tail(held_);
  std::string out = replace_invalid_utf8(std::string_view(held_).substr(0, held_.size() - tail));
  held_.erase(0, held_.size() - tail);
  return out;
}

std::string Detokenizer::finish() {
  std::string out = replace_invalid_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace sluice
