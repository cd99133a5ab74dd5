// What a model thinks before it answers: <think>…</think> at the very beginning of what it says (Qwen3,
// DeepSeek R1 and others).
//
// The parser reads byte by byte, so its joined output does not depend on how the text is cut. White space
// around thoughts belongs to nobody; an answer without thoughts comes out as it is. One instance per answer,
// one thread; linear in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class Reasoning : uint8_t {
  none,    // everything is the answer
  begins,  // the answer may begin with the opening mark
  opened,  // the prompt ended with the opening mark: what is said is thought until the closing one
};

inline constexpr std::string_view kThoughtOpen = "<think>", kThoughtClose = "</think>";

// Whether a model with this chat template thinks: templates take the thoughts of earlier turns out.
bool template_shows_reasoning(std::string_view template_source);

class ReasoningParser {
 public:
  explicit ReasoningParser(Reasoning reasoning);

  // Appends what became certain.
  void push(std::string_view text, std::string& thoughts, std::string& answer);
  // What is said has ended; what was held back comes out.
  void finish(std::string& thoughts, std::string& answer);

  bool thinking() const { return state_ == State::thinking; }

 private:
  enum class State : uint8_t { before, thinking, after, answer };
  void byte(char c, std::string& thoughts, std::string& answer);

  State state_;
  bool thought_ = false;  // something was
  std::string held_;      // white space, and what may be the beginning of a mark
  size_t blank_ = 0;      // of held_, the white space
};

}  // namespace sluice
