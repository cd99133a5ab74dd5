// Tokenizer: text to token ids and back. Immutable once created: every method may be called by any number of
// threads.
//
// Sources of the algorithms: byte-pair encoding over bytes as GPT-2 published it; merging by score as
// SentencePiece's BPE does; Viterbi over a unigram model as SentencePiece's does. Judged by llama.cpp on GGUF
// files and by Hugging Face tokenizers on tokenizer.json.
//
// Bad input: text that is not valid UTF-8 is encoded byte for byte where the vocabulary can (byte-level tokens,
// byte fallback) and loses nothing; callers that must refuse it do so before (utf8.h). Cost is O(n log n) in
// the text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"

namespace sluice {

// What becomes of control tokens when ids are turned into text.
enum class ControlText { kHide, kShow };

class Tokenizer {
 public:
  // kCorrupt: ids or sizes that contradict each other; kUnsupported: an unknown pre-tokenizer or pattern.
  static Result<std::unique_ptr<Tokenizer>> create(VocabularyData data);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // add_special: BOS and EOS as the vocabulary asks. parse_special: the text of control tokens ("<|im_start|>")
  // becomes those tokens; without it such text is ordinary text, whoever wrote it. User-defined tokens are
  // always recognised.
  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const;

  // Bytes that a token stands for, which need not be whole UTF-8 characters. Ids out of range give "".
  std::string_view piece(int32_t id, ControlText control = ControlText::kHide) const;
  // All pieces joined, without the space that encode put before the text. The bytes may be invalid UTF-8: see
  // replace_invalid_utf8().
  std::string decode(std::span<const int32_t> ids, ControlText control = ControlText::kHide) const;

  int32_t size() const;
  // Bytes of text that one token can stand for at most, so that a text too long for a context is known without
  // encoding it. 0: not known, as where a normalizer may shorten the text or a run of unknown text is one
  // token.
  size_t longest_piece() const;
  int32_t bos_id() const;  // -1: none
  int32_t eos_id() const;  // -1: none
  int32_t unk_id() const;
  int32_t pad_id() const;
  bool adds_bos() const;
  bool adds_eos() const;
  bool is_control(int32_t id) const;
  // True for EOS, EOT and tokens that end a turn by their name ("<|im_end|>", "<end_of_turn>", "<|eot_id|>",
  // …).
  bool end_of_generation(int32_t id) const;
  std::span<const int32_t> end_of_generation_ids() const;
  // The id of a token by its text as the vocabulary spells it; -1: none.
  int32_t find(std::string_view text) const;
  // encode puts a space before the text, so text that starts a decode loses it.
  bool strips_leading_space() const;

 private:
  class Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  size_t longest_piece_;
};

}  // namespace sluice
