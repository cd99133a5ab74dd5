// Bounds for the Jinja engine. The engine has no hooks, but its syntax tree is open: after parsing,
// guard_program() puts nodes of ours into it that count steps and bytes, look at the clock and the stack, and
// refuse what the engine would crash on. Internal to chat_template.cc; everything here may throw, nothing
// leaves that file.
//
// What is bounded: nesting of the source (before parsing); recursion, by stack bytes; loops, by steps and
// clock; strings and arrays, by an estimate of the memory they hold; containers that contain themselves or
// unfold exponentially, by a capped walk before any operation that would follow them; engine operations that
// are quadratic (replace, split), by our own linear ones; integer division by zero and sorting of values
// without an order, by refusing them.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "jinja/lexer.h"
#include "jinja/runtime.h"

namespace sluice {

// Thrown where a limit is hit; the engine wraps it with the position and passes it on.
class TemplateLimit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What one rendering may use: an estimate of the memory it holds, time, and stack. One thread.
//
// Memory has two parts. What expressions build lives until the statement around them ends: charge(), and
// enter() and leave() around each statement. What is stored in variables and containers lives on: keep(), and
// release() for what a member of a namespace held before. Counting all that was ever built instead refused
// templates that collect their output in a namespace, from a few hundred messages on.
class TemplateBudget {
 public:
  TemplateBudget(int64_t memory_bytes, TimeNs deadline_ns);
  void step();  // one node executed
  void charge(size_t bytes);
  int64_t enter() const { return built_bytes_; }
  void leave(int64_t mark);  // what enter() gave
  void keep(size_t bytes);
  void release(size_t bytes);
  ErrorCode exceeded() const { return exceeded_; }  // kInternal: nothing was

 private:
  [[noreturn]] void fail(ErrorCode code, const char* text);
  int64_t memory_bytes_;
  int64_t built_bytes_ = 0, kept_bytes_ = 0;
  TimeNs deadline_ns_;
  const char* stack_base_;
  uint32_t steps_ = 0;
  ErrorCode exceeded_ = ErrorCode::kInternal;
};

// Makes a budget the one that this thread's guard nodes draw on.
class TemplateBudgetScope {
 public:
  explicit TemplateBudgetScope(TemplateBudget& budget);
  ~TemplateBudgetScope();
  TemplateBudgetScope(const TemplateBudgetScope&) = delete;
};

// Before parsing: nesting that the recursive parser can take, blocks that close, statements that exist.
Status check_template_tokens(const jinja::lexer_result& tokens, const std::string& source);
// "line 3, column 7" of a byte position.
std::string template_position(const std::string& source, size_t at);
// After parsing.
void guard_program(jinja::program& program);
// Names of engine functions that the template uses as variables; install_globals gives guarded ones.
std::vector<std::string> used_globals(const jinja::lexer_result& tokens);
void install_globals(jinja::context& context, const std::vector<std::string>& names);

}  // namespace sluice
