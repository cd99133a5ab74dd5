// Detokenizer: ids to text, one at a time, for streaming. One instance per response, used by one thread at a
// time; the Tokenizer must outlive it.
//
// Invariant: everything push() and finish() appended equals replace_invalid_utf8(tokenizer.decode(all
// ids)) when Start is kText, and what each call appends is valid UTF-8.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace sluice {

class Detokenizer {
 public:
  enum class Start {
    kText,          // ids begin a text: the space that encode put before it is dropped
    kContinuation,  // ids go on from a prompt: every space counts
  };
  explicit Detokenizer(const Tokenizer& tokenizer, Start start = Start::kContinuation,
                       ControlText control = ControlText::kHide);

  // Appends the text that this token made certain, if any. Bytes that cannot be part of any character give
  // U+FFFD, once per maximal ill-formed part; bytes of an unfinished character wait for the next token.
  void push(int32_t id, std::string& out);
  // Appends what still waits, as one U+FFFD. The detokenizer then stands at the start of a continuation.
  void finish(std::string& out);

 private:
  const Tokenizer* tokenizer_;
  ControlText control_;
  bool strip_space_;
  std::string held_;  // 0..3 bytes
};

}  // namespace sluice
