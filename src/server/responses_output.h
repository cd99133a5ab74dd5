// The output of a response (OpenAI's Responses API): items in the order in which the model wrote them, and the
// events by which a stream tells of them. On the connection's thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/choice.h"

namespace sluice {

class ResponsesOutput {
 public:
  // `streams`: events are written; else only the items are kept.
  explicit ResponsesOutput(bool streams) : streams_(streams) {}

  // Appends an event of the stream: its type, its place in the stream, and `members` (JSON, without braces).
  void event(std::string& out, std::string_view type, std::string_view members);

  void add(std::string& out, const ChoiceDelta& delta);
  // The answer has ended. An answer of nothing is an empty message. `complete`: by itself, not by a limit.
  void end(std::string& out, bool complete);

  std::string items() const;  // elements of the response's `output`, JSON
  bool has_calls() const;
  // The answer as an element of a conversation, as templates read it, JSON; empty: it said nothing.
  std::string as_message() const;

 private:
  enum class Kind : uint8_t { reasoning, message, function_call };
  struct Item {
    Kind kind;
    std::string id;
    std::string call_id, name;  // of a call
    std::string text;           // or the call's arguments
    bool complete = true;
  };

  void open(std::string& out, Item item);
  void close(std::string& out, bool complete);
  void append(std::string& out, std::string_view text);
  void begin_event(std::string& out, std::string_view type);
  void append_place(std::string& out) const;
  std::string place() const;
  static std::string item_json(const Item& item, std::string_view status);
  std::string item_event(const Item& item, std::string_view status) const;

  const bool streams_;
  std::vector<Item> items_;
  bool open_ = false;  // the last item goes on
  int sequence_ = 0;
};

}  // namespace sluice
