#include "text/pre_tokenizer.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cctype>

namespace sluice {
namespace {

constexpr uint32_t kMatchLimit = 20'000'000;  // steps of one match attempt; patterns come with the model file
constexpr size_t kMaxPatternBytes = 64 << 10;

// One set per thread: PCRE2's scratch memory is what is not shareable, compiled patterns are.
struct MatchScratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  // 8 MiB of address space; pages are touched only by patterns that nest deeply.
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr);
  MatchScratch() {
    CHECK(data && context && stack);
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, kMatchLimit);
  }
  ~MatchScratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

MatchScratch& match_scratch() {
  thread_local MatchScratch scratch;
  return scratch;
}

bool digits_and_comma(std::string_view s) {
  if (s.empty()) return false;
  for (const char c : s) {
    if (!std::isdigit(uint8_t(c)) && c != ',') return false;
  }
  return true;
}

}  // namespace

std::string adapt_regex(std::string_view p) {
  std::string out;
  size_t atom = 0;  // where the last atom began in out
  bool in_class = false;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == '\\' && i + 1 < p.size()) {
      atom = out.size();
      // PCRE2's \s takes in U+180E, which Hugging Face's does not.
      if (p[i + 1] == 's') {
        out += "\\p{White_Space}";
      } else if (p[i + 1] == 'S') {
        out += "\\P{White_Space}";
      } else if (p[i + 1] == 'w') {  // PCRE2's leaves out marks
        out += in_class ? "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}" : "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}]";
      } else {
        out += p[i];
        out += p[i + 1];
        if ((p[i + 1] == 'p' || p[i + 1] == 'P') && i + 2 < p.size() && p[i + 2] == '{') {
          const size_t close = p.find('}', i);
          if (close != p.npos) {
            out += p.substr(i + 2, close - i - 1);
            i = close;
            continue;
          }
        }
      }
      ++i;
      continue;
    }
    const size_t close = p[i] == '{' ? p.find('}', i) : p.npos;
    if (close != p.npos && close + 1 < p.size() && p[close + 1] == '+' &&
        digits_and_comma(p.substr(i + 1, close - i - 1))) {
      // x{1,3}+ is possessive in PCRE2 and "repeat the whole" in Oniguruma, which tokenizer.json means.
      out = out.substr(0, atom) + "(?:" + out.substr(atom) + std::string(p.substr(i, close - i + 1)) + ")+";
      i = close + 1;
      continue;
    }
    if (p[i] != '{') atom = out.size();
    if (p[i] == '[') in_class = true;
    if (p[i] == ']') in_class = false;
    out += p[i];
  }
  return out;
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::create(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) return Error{ErrorCode::kTooLarge, "split pattern over 64 KiB"};
  const std::string adapted = adapt_regex(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(adapted.data()), adapted.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code->code) {
    PCRE2_UCHAR text[160] = {};
    pcre2_get_error_message(error, text, sizeof(text));
    return Error{ErrorCode::kUnsupported, fmt::format("split pattern does not compile at {}: {}", offset,
                                                      reinterpret_cast<const char*>(text))};
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(code));
}

bool Regex::find(std::string_view text, size_t from, TextSpan& match) const {
  MatchScratch& scratch = match_scratch();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int rc =
      code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), from, 0, scratch.data, scratch.context)
                 : pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.data,
                               scratch.context);
  if (rc < 0) return false;
  const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(scratch.data);
  match = {ovector[0], ovector[1]};
  return match.begin <= match.end;  // \K in a lookahead may turn them round
}

Result<PreTokenizer> PreTokenizer::create(const std::vector<SplitStep>& steps) {
  if (steps.size() > 32) return Error{ErrorCode::kTooLarge, "more than 32 split steps"};
  PreTokenizer out;
  for (const SplitStep& step : steps) {
    Result<Regex> regex = Regex::create(step.regex);
    if (!regex) return regex.error();
    out.steps_.push_back({std::move(*regex), step.behavior, step.invert});
  }
  return out;
}

void PreTokenizer::split_span(const Step& step, std::string_view text, TextSpan span,
                              std::vector<TextSpan>& pieces) {
  // Lookarounds must not see beyond the piece, so the piece is the subject.
  const std::string_view subject = text.substr(span.begin, span.end - span.begin);
  using Behavior = SplitStep::Behavior;
  size_t pending = 0;           // start of the piece that is still open
  bool last_separator = false;  // kContiguous: the open piece is separators
  auto close = [&](size_t end) {
    if (end > pending) pieces.push_back({span.begin + pending, span.begin + end});
    pending = end;
  };
  auto part = [&](size_t begin, size_t end, bool separator) {
    if (begin == end) return;
    switch (step.behavior) {
      case Behavior::kIsolated:
        close(end);
        break;
      case Behavior::kRemoved:
        if (separator) {
          pending = end;
        } else {
          close(end);
        }
        break;
      case Behavior::kMergedWithPrevious:
        if (separator)
          close(end);
        else if (begin > pending)
          close(begin);
        break;
      case Behavior::kMergedWithNext:
        if (separator) close(begin);
        break;
      case Behavior::kContiguous:
        if (begin > pending && separator != last_separator) close(begin);
        last_separator = separator;
        break;
    }
  };
  size_t at = 0, from = 0;
  TextSpan match;
  while (from <= subject.size() && step.regex.find(subject, from, match)) {
    if (match.end == match.begin) {  // an empty match splits nothing
      from = match.end + 1;
      while (from < subject.size() && (uint8_t(subject[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    part(at, match.begin, step.invert);
    part(match.begin, match.end, !step.invert);
    at = from = match.end;
  }
  part(at, subject.size(), step.invert);
  if (step.behavior != Behavior::kRemoved || !step.invert)
    close(subject.size());
  else if (pending < at)
    close(at);
}

void PreTokenizer::split(std::string_view text, std::vector<TextSpan>& pieces) const {
  if (text.empty()) return;
  if (steps_.empty()) {
    pieces.push_back({0, text.size()});
    return;
  }
  if (steps_.size() == 1) {
    split_span(steps_[0], text, {0, text.size()}, pieces);
    return;
  }
  std::vector<TextSpan> now{{0, text.size()}}, then;
  for (const Step& step : steps_) {
    then.clear();
    for (const TextSpan& span : now) split_span(step, text, span, then);
    now.swap(then);
  }
  pieces.insert(pieces.end(), now.begin(), now.end());
}

}  // namespace sluice
