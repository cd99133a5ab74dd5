#include "server/message_writer.h"

#include <utility>

namespace sluice {

void MessageWriter::new_turn(std::string_view role) {
  end_turn();
  role_ = role;
}

void MessageWriter::continue_turn(std::string_view role) {
  if (role_ != role) new_turn(role);
}

void MessageWriter::add_thoughts(std::string_view text) {
  if (!thoughts_.empty()) thoughts_ += '\n';
  thoughts_ += text;
}

void MessageWriter::add_call(std::string_view id, std::string_view name, std::string_view arguments) {
  if (!calls_.empty()) calls_ += ',';
  JsonWriter w(calls_);
  w.begin_object().key("id").string(id).key("type").string("function").key("function").begin_object();
  w.key("name").string(name).key("arguments").string(arguments).end_object().end_object();
}

void MessageWriter::add_result(std::string_view call_id, const std::vector<std::string>& texts) {
  begin_message("tool", texts);
  out_ += ",\"tool_call_id\":";
  append_json_string(out_, call_id);
  out_ += '}';
}

std::string MessageWriter::take() {
  end_turn();
  return std::exchange(out_, {});
}

void MessageWriter::end_turn() {
  if (!role_.empty() && (!texts_.empty() || !calls_.empty())) {
    begin_message(role_, texts_);
    if (!thoughts_.empty()) {
      out_ += ",\"reasoning_content\":";
      append_json_string(out_, thoughts_);
    }
    if (!calls_.empty()) out_ += ",\"tool_calls\":[" + calls_ + "]";
    out_ += '}';
  }
  role_.clear();
  texts_.clear();
  thoughts_.clear();
  calls_.clear();
}

// Several texts stay several parts: how they are joined is the template's to say, on every API alike.
void MessageWriter::begin_message(std::string_view role, const std::vector<std::string>& texts) {
  if (!out_.empty()) out_ += ',';
  JsonWriter w(out_);
  w.begin_object().key("role").string(role).key("content");
  if (texts.size() < 2) {
    w.string(texts.empty() ? std::string_view() : std::string_view(texts.front()));
    return;
  }
  w.begin_array();
  for (const std::string& text : texts)
    w.begin_object().key("type").string("text").key("text").string(text).end_object();
  w.end_array();
}

}  // namespace sluice
