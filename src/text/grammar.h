// Grammars that bound what a model may say: compiled from a JSON Schema, a regular expression, a grammar in
// EBNF (GBNF) or a structural tag, for one vocabulary; and the matcher, which follows one answer and gives the
// mask of allowed tokens. xgrammar's C++ core does the work behind this header.
//
// A compile runs hostile input, so it is bounded: bytes of source, CPU time and memory of the compile, memory
// of the result (GrammarLimits); whatever xgrammar warns of (a keyword that it would ignore) is an error here.
// What is compiled is kept, least recently used out first, within a bound of bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace sluice {

struct GrammarSource {
  enum class Kind : uint8_t {
    kJsonSchema,     // a schema as JSON text, checked before (server/json_schema.h)
    kRegex,          // the whole answer matches
    kEbnf,           // rules, of which `root` is the answer: llama.cpp's GBNF, xgrammar's EBNF
    kStructuralTag,  // xgrammar's format for text around schemas: tool calls
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;
};

struct GrammarLimits {
  size_t source_bytes = 512 << 10;
  TimeNs compile_cpu_ns = 1'000'000'000;  // of one compile
  int64_t compile_bytes = 512 << 20;      // that one compile may hold at a time
  size_t cached_bytes = 256 << 20;        // of compiled grammars that nobody uses
  size_t cached_grammars = 128;
  TimeNs mask_cpu_ns = 200'000'000;  // of one token: accepting it and the mask for the next
  int64_t matcher_bytes = 64 << 20;  // of one answer's state
  int64_t fail_at_allocation = 0;    // tests: the compile's n-th allocation is one too many; 0: none
};

class Grammar;  // compiled; immutable, shared by matchers of any thread

class GrammarCompiler {
 public:
  // `tokenizer` must outlive it. `vocab`: ids that the model can sample, at least those of the tokenizer.
  // `end_ids`: allowed where the grammar may end.
  GrammarCompiler(const Tokenizer& tokenizer, int vocab, std::span<const int32_t> end_ids,
                  GrammarLimits limits);
  ~GrammarCompiler();

  // What has been compiled before, or null. Any thread; quick.
  std::shared_ptr<const Grammar> find(const GrammarSource& source);
  // Any thread that may work for seconds; several run side by side. Errors (no field set): kInvalidArgument
  // with what is wrong; kTooLarge for what is over a limit. Refusals for cost are kept like grammars are, so
  // that asking again costs nothing.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source);

  const GrammarLimits& limits() const { return limits_; }

 private:
  struct Vocabulary;
  struct Kept {
    std::string key;
    std::shared_ptr<const Grammar> grammar;  // null: refused
    Error refusal;
  };
  Result<std::shared_ptr<const Grammar>> compile_now(const GrammarSource& source);
  const Kept* look_up(const std::string& key);
  void keep(Kept kept);

  const Tokenizer& tokenizer_;
  const int vocab_;
  const std::vector<int32_t> end_ids_;
  const GrammarLimits limits_;
  std::once_flag vocabulary_once_;
  std::unique_ptr<Vocabulary> vocabulary_;  // made by the first compile: a tenth of a second for large ones

  std::mutex mutex_;
  std::list<Kept> kept_;  // most recently used first; guarded by mutex_
  std::unordered_map<std::string, std::list<Kept>::iterator> by_key_;  // guarded by mutex_
  size_t kept_bytes_ = 0;                                              // guarded by mutex_
};

// One answer's way through a grammar. Used by one thread at a time.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, const GrammarLimits& limits);
  ~GrammarMatcher();

  enum class State : uint8_t {
    kOpen,    // the mask holds what may come next
    kOver,    // complete, and nothing may follow: the end was accepted, or no end token is left to allow
    kFailed,  // over a limit, or no token of the vocabulary can go on
  };
  // Takes in a sampled id. False: it was not allowed (the matcher is kFailed from then on).
  bool accept(int32_t id);
  // Fills [(vocab + 31) / 32] words.
  State fill(std::span<uint32_t> mask);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
