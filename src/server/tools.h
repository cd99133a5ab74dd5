// Tools: what a request offers the model, how the answer is held to it, and how a prompt shows it. The same for
// all APIs; each reads its own form of tools and tool_choice into ToolOptions.
//
// A template that renders tools and tool calls itself is given both as they are. One that does not would drop
// them silently; for it they are written into the messages (`tools_as_text`): a system message describes the
// tools and the hermes form of a call, calls of the history become that text, results become user messages.
#pragma once

#include <string>
#include <vector>

#include "server/request_members.h"
#include "text/tool_calls.h"

namespace sluice {

struct Tool {
  std::string name;
  std::string parameters;  // checked schema (json_schema.h), where calls may have to be enforced; "{}" of none
  Error unenforceable;     // set: the schema has what cannot be enforced, which matters only where it has to be
  bool strict = false;
};

enum class ToolChoice : uint8_t { automatic, none, required, named };

struct ToolOptions {
  std::vector<Tool> tools;
  std::string tools_json;  // the array as templates get it
  ToolChoice choice = ToolChoice::automatic;
  std::string named;                                           // choice == named
  std::string_view named_field = "tool_choice.function.name";  // where the API has that name
  bool parallel = true;

  bool active() const { return !tools.empty() && choice != ToolChoice::none; }
  bool forced() const { return active() && (choice == ToolChoice::required || choice == ToolChoice::named); }
};

// As chat completions have them: {"type":"function","function":{"name","description","parameters","strict"}}.
Status read_tools(JsonView value, ToolOptions& options);
Status read_tool_choice(JsonView value, ToolOptions& options);

// As other APIs have them: the function's members stand in the tool itself, the schema under a name of the
// API's.
struct FlatTools {
  const char* type;  // that a function has
  bool needs_type;
  const char* schema;
  bool needs_schema;
};
// Other members of a tool are noted in `ignored`.
Status read_flat_tools(JsonView value, const FlatTools& form, ToolOptions& options, GenerationOptions& ignored);

// After all members: what contradicts; and, where calls are forced, the grammar that makes the model call.
Status settle_tools(const ToolOptions& tools, GenerationOptions& options);

// Where calls are forced: what the answer is held to. `format`: how the answer's parser reads calls. The marker
// that opens calls is left out (ToolCallParser's `inside`), since many vocabularies have it as a control token.
GrammarSource forced_calls(const ToolOptions& tools, ToolFormat format);

// tool_calls of a message in the history. `where`: its path.
Status check_tool_calls(JsonView calls, const std::string& where);
// Messages (JSON array, checked) with tools, calls and results as text.
std::string tools_as_text(std::string_view messages_json, std::string_view tools_json);

}  // namespace sluice
