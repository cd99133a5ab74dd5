#include "server/responses_output.h"

#include <algorithm>

#include "server/answer_json.h"
#include "server/message_writer.h"

namespace sluice {

namespace {

constexpr std::string_view kEventEnd = "}\n\n";

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string thought_part(std::string_view text) {
  return R"({"type":"reasoning_text","text":)" + quoted(text) + "}";
}

std::string text_part(std::string_view text) {
  return R"({"type":"output_text","text":)" + quoted(text) + R"(,"annotations":[],"logprobs":[]})";
}

}  // namespace

void ResponsesOutput::begin_event(std::string& out, std::string_view type) {
  out.append("event: ").append(type).append("\ndata: {\"type\":\"").append(type);
  out += R"(","sequence_number":)";
  out += std::to_string(sequence_++);
  out += ',';
}

void ResponsesOutput::event(std::string& out, std::string_view type, std::string_view members) {
  begin_event(out, type);
  out += members;
  out += kEventEnd;
}

void ResponsesOutput::add(std::string& out, const ChoiceDelta& delta) {
  if (!delta.thoughts.empty()) {
    if (!open_) open(out, {Kind::reasoning, "rs_" + random_id(), "", "", ""});
    append(out, delta.thoughts);
  }
  in_order(
      delta,
      [&](std::string_view text) {
        if (!open_ || items_.back().kind != Kind::message)
          open(out, {Kind::message, "msg_" + random_id(), "", "", ""});
        append(out, text);
      },
      [&](const ToolCallPiece& call) {
        if (!call.name.empty())
          open(out, {Kind::function_call, "fc_" + random_id(), "call_" + random_id(), call.name, ""});
        if (!call.arguments.empty()) append(out, call.arguments);
        items_.back().complete = call.complete;
      });
}

void ResponsesOutput::end(std::string& out, bool complete) {
  if (items_.empty()) open(out, {Kind::message, "msg_" + random_id(), "", "", ""});
  close(out, complete);
}

void ResponsesOutput::open(std::string& out, Item item) {
  close(out, true);
  items_.push_back(std::move(item));
  open_ = true;
  if (!streams_) return;
  event(out, "response.output_item.added", item_event(items_.back(), "in_progress"));
  const Kind kind = items_.back().kind;
  if (kind == Kind::function_call) return;
  const std::string part = kind == Kind::message ? text_part("") : thought_part("");
  event(out, "response.content_part.added", place() + R"(,"content_index":0,"part":)" + part);
}

void ResponsesOutput::append(std::string& out, std::string_view text) {
  Item& item = items_.back();
  item.text += text;
  if (!streams_) return;
  // The one event that comes with each token: written in place.
  begin_event(out, item.kind == Kind::message     ? "response.output_text.delta"
                   : item.kind == Kind::reasoning ? "response.reasoning_text.delta"
                                                  : "response.function_call_arguments.delta");
  append_place(out);
  if (item.kind != Kind::function_call) out += R"(,"content_index":0)";
  out += R"(,"delta":)";
  append_json_string(out, text);
  if (item.kind == Kind::message) out += R"(,"logprobs":[])";
  out += kEventEnd;
}

void ResponsesOutput::close(std::string& out, bool complete) {
  if (!open_) return;
  open_ = false;
  Item& item = items_.back();
  if (item.kind != Kind::function_call) item.complete = complete;
  if (!streams_) return;
  if (item.kind == Kind::message) {
    event(out, "response.output_text.done",
          place() + R"(,"content_index":0,"text":)" + quoted(item.text) + R"(,"logprobs":[])");
    event(out, "response.content_part.done", place() + R"(,"content_index":0,"part":)" + text_part(item.text));
  } else if (item.kind == Kind::reasoning) {
    event(out, "response.reasoning_text.done", place() + R"(,"content_index":0,"text":)" + quoted(item.text));
    event(out, "response.content_part.done",
          place() + R"(,"content_index":0,"part":)" + thought_part(item.text));
  } else {
    event(out, "response.function_call_arguments.done",
          place() + R"(,"name":)" + quoted(item.name) + R"(,"arguments":)" + quoted(item.text));
  }
  event(out, "response.output_item.done", item_event(item, item.complete ? "completed" : "incomplete"));
}

// Of the last item.
void ResponsesOutput::append_place(std::string& out) const {
  out.append(R"("item_id":")").append(items_.back().id).append(R"(","output_index":)");
  out += std::to_string(items_.size() - 1);
}

std::string ResponsesOutput::place() const {
  std::string out;
  append_place(out);
  return out;
}

std::string ResponsesOutput::item_event(const Item& item, std::string_view status) const {
  return R"("output_index":)" + std::to_string(items_.size() - 1) + R"(,"item":)" + item_json(item, status);
}

// While it is in progress, an item has nothing in it yet.
std::string ResponsesOutput::item_json(const Item& item, std::string_view status) {
  const bool begins = status == "in_progress";
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("id").string(item.id);
  if (item.kind == Kind::message) {
    w.key("type").string("message").key("status").string(status).key("role").string("assistant");
    w.key("content").raw(begins ? "[]" : "[" + text_part(item.text) + "]");
  } else if (item.kind == Kind::reasoning) {
    w.key("type").string("reasoning").key("status").string(status).key("summary").begin_array().end_array();
    w.key("content").raw(begins ? "[]" : "[" + thought_part(item.text) + "]");
  } else {
    w.key("type").string("function_call").key("status").string(status).key("call_id").string(item.call_id);
    w.key("name").string(item.name).key("arguments").string(begins ? "" : item.text);
  }
  w.end_object();
  return out;
}

std::string ResponsesOutput::items() const {
  std::string out;
  for (const Item& item : items_) {
    if (!out.empty()) out += ',';
    out += item_json(item, item.complete ? "completed" : "incomplete");
  }
  return out;
}

bool ResponsesOutput::has_calls() const {
  return std::any_of(items_.begin(), items_.end(), [](const Item& i) { return i.kind == Kind::function_call; });
}

std::string ResponsesOutput::as_message() const {
  MessageWriter writer;
  writer.new_turn("assistant");
  for (const Item& item : items_) {
    if (item.kind == Kind::message)
      writer.add_text(item.text);
    else if (item.kind == Kind::reasoning)
      writer.add_thoughts(item.text);
    else
      writer.add_call(item.call_id, item.name, item.text);
  }
  return writer.take();
}

}  // namespace sluice
