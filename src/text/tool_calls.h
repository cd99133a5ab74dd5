// Tool calls in what a model says: the ways in which families write them, and a parser that works on the
// stream.
//
//   hermes    <tool_call>{"name": "f", "arguments": {…}}</tool_call>, once per call (Qwen, Hermes, SmolLM, …)
//   llama3    the whole answer is {"name": "f", "parameters": {…}}, several joined by ";", maybe after
//   <|python_tag|> mistral   [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …], or [TOOL_CALLS]f[ARGS]{…} of
//   newer models
//
// The parser reads byte by byte, so its joined output does not depend on how the text is cut. Text that begins
// like a call and turns out to be none is text again, unless its name and arguments have been given out
// already. One instance per answer, one thread; linear in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

enum class ToolFormat : uint8_t { none, hermes, llama3, mistral };

// As a chat template shows it; hermes where it shows nothing known.
ToolFormat tool_format_of(std::string_view template_source);
// "hermes", "llama3", "mistral", "none"; `known` false: another name.
ToolFormat tool_format_named(std::string_view name, bool& known);

// Text of control tokens that the parser must see although control tokens are hidden.
bool is_tool_marker(ToolFormat format, std::string_view text);

// A piece of a call. The pieces of one call have its index; the first has its name, the others arguments.
struct ToolCallPiece {
  int index = 0;
  std::string name;        // set in the first piece alone
  std::string arguments;   // appended to what came before: JSON text
  bool complete = false;   // the call's last piece
  size_t text_before = 0;  // bytes of `content` that were there when it began: what the model wrote before it
};

class ToolCallParser {
 public:
  // `inside`: the text begins within a call (the marker was left out, since a grammar said that a call comes).
  explicit ToolCallParser(ToolFormat format, bool inside = false);

  // Appends what became certain: text that is no call to `content`, pieces of calls to `calls`.
  void push(std::string_view text, std::string& content, std::vector<ToolCallPiece>& calls);
  // The answer has ended; what was held back comes out.
  void finish(std::string& content, std::vector<ToolCallPiece>& calls);

  int calls() const { return calls_; }              // begun
  int whole_calls() const { return whole_calls_; }  // of them, those that came to their end

 private:
  enum class State : uint8_t { text, opening, name, object, after };
  // Which member of the call's object is being read.
  enum class Member : uint8_t { none, key, colon, name, arguments, other };
  struct Out {
    std::string& content;
    std::vector<ToolCallPiece>& calls;
  };

  void byte(char c, Out& out);
  void text_byte(char c, Out& out);
  void opening_byte(char c, Out& out);
  void name_byte(char c, Out& out);
  void object_byte(char c, Out& out);
  void after_byte(char c, Out& out);
  void member_byte(char c, Out& out);
  void end_member(Out& out);
  void begin_object();
  void begin_call(Out& out);
  void end_call(Out& out);
  void give_arguments(std::string_view text, Out& out);
  void no_call(Out& out);
  std::string_view marker() const;

  const ToolFormat format_;
  State state_;
  int calls_ = 0, whole_calls_ = 0;

  std::string held_;    // of the answer, not given out yet: white space, a beginning marker, a beginning call
  bool bare_ = false;   // of one call: arguments follow the name without an object around them
  bool begun_ = false;  // its name was given out
  bool in_array_ = false;
  bool had_text_ = false;  // an object after it is no call of llama3

  // The object's state.
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
  Member member_ = Member::none;
  std::string key_, name_, arguments_;  // arguments_: not given out yet
  bool named_ = false, has_arguments_ = false, value_begun_ = false, as_text_ = false;
};

}  // namespace sluice
