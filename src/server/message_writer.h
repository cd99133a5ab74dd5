// Messages as chat templates know them (OpenAI's chat form, JSON), written turn by turn: how APIs with another
// form of conversation reach the same templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/json_writer.h"

namespace sluice {

class MessageWriter {
 public:
  // What follows belongs to a turn of `role`: a new one, or the one before where its role is the same.
  void new_turn(std::string_view role);
  void continue_turn(std::string_view role);
  void add_text(std::string_view text) { texts_.emplace_back(text); }
  // What the assistant thought before it said the rest of its turn.
  void add_thoughts(std::string_view text);
  bool has_only_thoughts() const { return !thoughts_.empty() && texts_.empty() && calls_.empty(); }
  // A call that the assistant makes; `arguments`: JSON text.
  void add_call(std::string_view id, std::string_view name, std::string_view arguments);
  // What a call gave. A message of its own, before whatever else the current turn says.
  void add_result(std::string_view call_id, const std::vector<std::string>& texts);
  // The elements of the array so far, commas between them. Ends the current turn.
  std::string take();

 private:
  void end_turn();
  void begin_message(std::string_view role, const std::vector<std::string>& texts);

  std::string out_;
  std::string role_;  // of the current turn; empty: none
  std::vector<std::string> texts_;
  std::string thoughts_;
  std::string calls_;  // elements of its tool_calls
};

}  // namespace sluice
