// Detokenizer: ids to text, one at a time, for streaming. One instance per response, used by one thread at a
// time; the Tokenizer must outlive it.
//
// Invariant: everything push() and finish() returned, joined, equals replace_invalid_utf8(tokenizer.decode(all
// ids)) when Start is kText, and every single return value is valid UTF-8.
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

  // Text that this token made certain; may be empty. Bytes that cannot be part of any character give U+FFFD,
  // once per maximal ill-formed part; bytes of an unfinished character wait for the next token.
  std::string push(int32_t id);
  // What still waits, as one U+FFFD. The detokenizer then stands at the start of a continuation.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  ControlText control_;
  bool strip_space_;
  std::string held_;  // 0..3 bytes
};

}  // namespace sluice
