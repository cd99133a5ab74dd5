#include "text/detokenizer.h"

#include "text/utf8.h"

namespace sluice {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, Start start, ControlText control)
    : tokenizer_(&tokenizer),
      control_(control),
      strip_space_(start == Start::kText && tokenizer.strips_leading_space()) {}

void Detokenizer::push(int32_t id, std::string& out) {
  std::string_view piece = tokenizer_->piece(id, control_);
  if (strip_space_ && !piece.empty()) {
    if (piece[0] == ' ' && !tokenizer_->is_control(id)) piece.remove_prefix(1);
    strip_space_ = false;
  }
  held_ += piece;
  const size_t tail = utf8_incomplete_tail(held_);
  append_valid_utf8(out, std::string_view(held_).substr(0, held_.size() - tail));
  held_.erase(0, held_.size() - tail);
}

void Detokenizer::finish(std::string& out) {
  append_valid_utf8(out, held_);
  held_.clear();
}

}  // namespace sluice
