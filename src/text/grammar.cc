// The one file that includes xgrammar.
#include "text/grammar.h"

#include <dlpack/dlpack.h>
#include <support/logging.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/allocation_budget.h"
#include "base/log.h"
#include "base/meter.h"

namespace {

// What xgrammar warned of in this thread's compile: things it would ignore.
thread_local std::string* warnings = nullptr;

}  // namespace

namespace xgrammar {

void LogFatalImpl(const std::string& file, int lineno, const std::string& message) {
  throw LogFatalError(file, lineno, message);
}
// Called by a destructor: must not throw, not even for want of budget.
void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level < XGRAMMAR_LOG_LEVEL_WARNING || !warnings || !warnings->empty()) return;
  try {
    *warnings = message;
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace xgrammar

namespace sluice {

class Grammar {
 public:
  explicit Grammar(xgrammar::CompiledGrammar grammar) : compiled(std::move(grammar)) {}
  xgrammar::CompiledGrammar compiled;
  size_t bytes = 0;
};

struct GrammarCompiler::Vocabulary {
  xgrammar::TokenizerInfo tokens;
};

namespace {

constexpr int kMaxRecursion = 500;

struct Meters {
  Histogram& seconds =
      meter::histogram("sluice_grammar_compile_seconds",
                       "CPU time of compiling a grammar for structured output.", meter::kSeconds);
  Counter& refused = meter::counter("sluice_grammar_refused_total",
                                    "Grammars refused: invalid, unsupported, or over a limit.");
  Counter& hits = meter::counter("sluice_grammar_cache_hits_total", "Grammars that had been compiled before.");
};
Meters& meters() {
  static Meters all;
  return all;
}

std::string key_of(const GrammarSource& source) {
  std::string key(1, char('0' + int(source.kind)));
  return key += source.text;
}

// xgrammar's EBNF is llama.cpp's GBNF but for the dot, which stands for any character there and is a letter of
// names here.
std::string with_any_spelled(std::string_view text) {
  std::string out;
  char quote = 0;  // inside "…" or […]: its end
  const auto in_name = [&](size_t i) {
    return i < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_' || text[i] == '-');
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && i + 1 < text.size()) {
      out += c;
      out += text[++i];
      continue;
    }
    if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '[') {
      quote = c == '"' ? '"' : ']';
    } else if (c == '#') {
      for (; i < text.size() && text[i] != '\n'; ++i) out += text[i];
      if (i == text.size()) break;
    } else if (c == '.' && !(i > 0 && in_name(i - 1)) && !in_name(i + 1)) {
      out += "[\\x00-\\U0010FFFF]";
      continue;
    }
    out += text[i];
  }
  return out;
}

xgrammar::CompiledGrammar compile_source(xgrammar::GrammarCompiler& compiler, const GrammarSource& source) {
  switch (source.kind) {
    case GrammarSource::Kind::kJsonSchema:
      // White space is bounded: a model that may write it for ever does.
      return compiler.CompileJSONSchema(source.text, true, std::nullopt, std::nullopt, true, 8);
    case GrammarSource::Kind::kRegex:
      return compiler.CompileRegex(source.text);
    case GrammarSource::Kind::kEbnf:
      return compiler.CompileGrammar(with_any_spelled(source.text), "root");
    case GrammarSource::Kind::kStructuralTag:
      return compiler.CompileStructuralTag(source.text);
  }
  CHECK(false);
}

// Parentheses and rules make the library recurse; its own limit on that is for other things.
const char* too_nested(const GrammarSource& source) {
  constexpr int kDepth = 100, kRules = 500;
  if (source.kind != GrammarSource::Kind::kRegex && source.kind != GrammarSource::Kind::kEbnf) return nullptr;
  int depth = 0, rules = 0;
  char quote = 0;  // inside "…" or […]: its end
  for (size_t i = 0; i < source.text.size(); ++i) {
    const char c = source.text[i];
    if (c == '\\') {
      ++i;
    } else if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '[') {
      quote = ']';
    } else if (c == '"' && source.kind == GrammarSource::Kind::kEbnf) {
      quote = '"';
    } else if (c == '(') {
      if (++depth > kDepth) return "is nested more than 100 parentheses deep.";
    } else if (c == ')') {
      --depth;
    } else if (source.text.compare(i, 3, "::=") == 0 && ++rules > kRules) {
      return "has more than 500 rules.";
    }
  }
  return nullptr;
}

// One line, without the library's position in its own source.
std::string message_of(const std::runtime_error& e) {
  std::string text = e.std::runtime_error::what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  if (text.size() > 512) text.resize(512);
  return text;
}

}  // namespace

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int vocab, std::span<const int32_t> end_ids,
                                 GrammarLimits limits)
    : tokenizer_(tokenizer), vocab_(vocab), end_ids_(end_ids.begin(), end_ids.end()), limits_(limits) {
  meters();
}
GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const Grammar> GrammarCompiler::find(const GrammarSource& source) {
  std::lock_guard lock(mutex_);
  const Kept* kept = look_up(key_of(source));
  if (!kept || !kept->grammar) return nullptr;
  meters().hits.add();
  return kept->grammar;
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSource& source) {
  if (source.text.size() > limits_.source_bytes) {
    meters().refused.add();
    return Error{ErrorCode::kTooLarge,
                 fmt::format("is longer than the {} KiB that a grammar may have.", limits_.source_bytes >> 10)};
  }
  if (const char* why = too_nested(source)) {
    meters().refused.add();
    return Error{ErrorCode::kTooLarge, why};
  }
  std::string key = key_of(source);
  {
    std::lock_guard lock(mutex_);
    if (const Kept* kept = look_up(key)) {
      if (!kept->grammar) return kept->refusal;
      meters().hits.add();
      return kept->grammar;
    }
  }
  auto made = compile_now(source);
  if (!made.ok()) meters().refused.add();
  if (made.ok())
    keep({std::move(key), *made, {}});
  else if (made.error().code == ErrorCode::kTooLarge)
    keep({std::move(key), nullptr, made.error()});
  return made;
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile_now(const GrammarSource& source) {
  std::call_once(vocabulary_once_, [&] {
    xgrammar::SetMaxRecursionDepth(kMaxRecursion);
    std::vector<std::string> pieces(size_t(std::max(vocab_, 0)));
    for (int32_t id = 0; id < std::min(vocab_, tokenizer_.size()); ++id)
      pieces[size_t(id)] =
          tokenizer_.piece(id, ControlText::kHide);  // "": control, never allowed but as an end
    vocabulary_ = std::make_unique<Vocabulary>(
        Vocabulary{xgrammar::TokenizerInfo(pieces, xgrammar::VocabType::RAW, vocab_, end_ids_)});
  });
  std::string warned;
  std::shared_ptr<Grammar> made;
  std::string failed;
  AllocationBudget::Limit limit;
  {
    AllocationBudget budget(limits_.compile_bytes, limits_.compile_cpu_ns);
    budget.fail_at(limits_.fail_at_allocation);
    warnings = &warned;
    try {
      // One thread: the budget is this thread's. No cache of its own: ours has a bound.
      xgrammar::GrammarCompiler compiler(vocabulary_->tokens, 1, false);
      made = std::make_shared<Grammar>(compile_source(compiler, source));
      made->bytes = size_t(std::max<int64_t>(budget.held_bytes(), 0));
    } catch (const BudgetExhausted&) {
      made.reset();
    } catch (const std::runtime_error& e) {
      failed = message_of(e);
      if (failed.empty()) failed = "cannot be compiled.";
    } catch (const std::exception& e) {
      failed = e.what();
    }
    warnings = nullptr;
    limit = budget.exhausted();
    meters().seconds.observe(double(budget.used_ns()) * 1e-9);
  }
  if (limit == AllocationBudget::Limit::time)
    return Error{ErrorCode::kTooLarge, fmt::format("takes more than {} ms to compile: it is too complex.",
                                                   limits_.compile_cpu_ns / 1'000'000)};
  if (limit == AllocationBudget::Limit::memory)
    return Error{ErrorCode::kTooLarge, fmt::format("takes more than {} MiB to compile: it is too complex.",
                                                   limits_.compile_bytes >> 20)};
  if (!failed.empty()) return Error{ErrorCode::kInvalidArgument, "cannot be used: " + failed};
  if (!warned.empty()) return Error{ErrorCode::kInvalidArgument, "is not supported: " + warned};
  return std::shared_ptr<const Grammar>(std::move(made));
}

const GrammarCompiler::Kept* GrammarCompiler::look_up(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return &kept_.front();
}

void GrammarCompiler::keep(Kept kept) {
  const auto bytes_of = [](const Kept& k) { return k.key.size() * 2 + (k.grammar ? k.grammar->bytes : 0); };
  std::lock_guard lock(mutex_);
  if (look_up(kept.key)) return;  // another thread was quicker
  kept_bytes_ += bytes_of(kept);
  kept_.push_front(std::move(kept));
  by_key_[kept_.front().key] = kept_.begin();
  while (kept_.size() > limits_.cached_grammars || kept_bytes_ > limits_.cached_bytes) {
    kept_bytes_ -= bytes_of(kept_.back());
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

struct GrammarMatcher::Impl {
  Impl(std::shared_ptr<const Grammar> g, const GrammarLimits& l) : grammar(std::move(g)), limits(l) {}

  // Runs xgrammar's code within what is left of the answer's budget. False: over it, or the code failed.
  template <typename F>
  bool bounded(F&& work) {
    AllocationBudget budget(limits.matcher_bytes - held, limits.mask_cpu_ns);
    bool fine = true;
    try {
      fine = work();
    } catch (const std::exception&) {
      fine = false;
    }
    held += budget.held_bytes();
    return fine && budget.exhausted() == AllocationBudget::Limit::none;
  }

  xgrammar::GrammarMatcher& state() { return matcher ? *matcher : matcher.emplace(grammar->compiled); }

  std::shared_ptr<const Grammar> grammar;
  const GrammarLimits limits;
  std::optional<xgrammar::GrammarMatcher> matcher;  // made within the budget, at its first use
  int64_t held = 0;
  bool failed = false;
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, const GrammarLimits& limits)
    : impl_(std::make_unique<Impl>(std::move(grammar), limits)) {}
GrammarMatcher::~GrammarMatcher() = default;

bool GrammarMatcher::accept(int32_t id) {
  if (!impl_->failed && !impl_->bounded([&] { return impl_->state().AcceptToken(id); })) impl_->failed = true;
  return !impl_->failed;
}

GrammarMatcher::State GrammarMatcher::fill(std::span<uint32_t> mask) {
  if (impl_->failed) return State::kFailed;
  if (impl_->matcher && impl_->matcher->IsTerminated()) return State::kOver;
  auto words = int64_t(mask.size());
  DLTensor tensor{.data = mask.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &words,
                  .strides = nullptr,
                  .byte_offset = 0};
  const bool filled = impl_->bounded([&] {
    // All allowed is told by the return value alone.
    if (!impl_->state().FillNextTokenBitmask(&tensor)) std::fill(mask.begin(), mask.end(), ~uint32_t{0});
    return true;
  });
  const bool empty = std::all_of(mask.begin(), mask.end(), [](uint32_t w) { return w == 0; });
  if (filled && empty && impl_->matcher->IsCompleted()) return State::kOver;
  if (!filled || empty) impl_->failed = true;
  return impl_->failed ? State::kFailed : State::kOpen;
}

}  // namespace sluice
