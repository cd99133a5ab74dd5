// Members that the generation APIs share, and the rules for all members of a request:
//  - null means "not given";
//  - a member given twice is an error (which one counts would differ between JSON readers);
//  - a member that would change the result and cannot be honoured is refused by name, unless its value is the
//  one that
//    changes nothing;
//  - any other unknown member is ignored, counted, and its name logged once.
// Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/served_model.h"
#include "sched/request.h"
#include "server/json.h"
#include "text/grammar.h"
#include "text/reasoning.h"
#include "text/tool_calls.h"

namespace sluice {

// What parsing must know of server and model.
struct RequestBounds {
  int vocab = 0;
  int max_n = 128;
  int max_prompts = 256;
  int max_completions = 256;
};

struct GenerationOptions {
  std::optional<std::string> model;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<int> max_tokens;
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_ids;
  std::vector<std::string> stop;
  bool include_stop_text = false;  // include_stop_str_in_output
  bool show_control = false;       // skip_special_tokens: false
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // return_tokens_as_token_ids
  std::optional<Lane> lane;    // priority
  std::array<uint64_t, 2> cache_salt{};
  // Members that were given and have no effect here, at most limits::kIgnoredShown: told in x-sluice-ignored.
  std::vector<std::string> ignored;
  std::optional<GrammarSource> grammar;  // what the answer is held to (grammar_members.h); not compiled yet
  std::string grammar_field;             // the member that asked for it
  ToolFormat tool_format = ToolFormat::none;  // how calls of tools stand in the answer; none: it has none
  bool inside_call = false;                   // the prompt ends with what opens a call
  Reasoning reasoning = Reasoning::none;      // thoughts before the answer
  bool one_call = false;                      // the answer ends after its first call
};

// A member of one API: `read` fills the request from a value that is not null.
template <typename Request>
struct Member {
  std::string_view name;
  Status (*read)(JsonView value, Request& request, const RequestBounds& bounds);
};

// Readers of one value. The error's field is left empty where the member itself is at fault: read_members names
// it.
Status read_boolean(JsonView value, bool& out);
Status read_integer(JsonView value, int64_t low, int64_t high, int& out);
Status read_number(JsonView value, double low, double high, std::optional<float>& out);
Status read_text(JsonView value, std::string& out);
Status read_token_ids(JsonView value, int vocab, size_t limit, std::vector<int32_t>& out);
Error member_error(std::string message, std::string field = {});

// The elements of `messages`, in order, each with its name for errors; ends with the first that is refused.
Status each_message(JsonView messages, const std::function<Status(JsonView, const std::string& where)>& read);

// One member shared by the generation APIs. Unset: not one of these.
std::optional<Status> read_shared_member(std::string_view name, JsonView value, GenerationOptions& options,
                                         const RequestBounds& bounds);
// Whether it is one of these.
bool is_shared_member(std::string_view name);
// A member that no API here can honour. Unset: unknown, and already counted. What is ignored is noted in
// `options`.
std::optional<Status> refuse_member(std::string_view name, JsonView value, GenerationOptions& options);
void note_ignored(std::string_view name, GenerationOptions& options);

// A lane by its name; unset: there is no such lane.
std::optional<Lane> lane_named(std::string_view name);
inline constexpr std::string_view kLaneNames = "interactive, standard, batch";

// Registered at start, so that the first scrape shows them.
void register_member_meters();

// Names seen so far in an object; for finding doubles among the known ones.
class SeenNames {
 public:
  Status add(std::string_view name);

 private:
  std::vector<std::string_view> names_;
};

// Reads all members of `object` into `request`, which has a member `options`.
template <typename Request>
Status read_members(JsonView object, std::span<const Member<Request>> own, Request& request,
                    const RequestBounds& bounds) {
  if (!object.is_object()) return member_error("The request body must be a JSON object.");
  Status result;
  SeenNames seen;
  object.each_member([&](std::string_view name, JsonView value) {
    const Member<Request>* known = nullptr;
    for (const auto& member : own) {
      if (member.name == name) known = &member;
    }
    if (value.is_null()) return true;
    std::optional<Status> status;
    if (known != nullptr) status = known->read(value, request, bounds);
    if (!status) status = read_shared_member(name, value, request.options, bounds);
    if (!status) status = refuse_member(name, value, request.options);
    if (!status) return true;
    if (status->ok()) *status = seen.add(name);
    if (status->ok()) return true;
    Error error = status->error();
    if (error.field.empty()) error.field = std::string(name);
    result = std::move(error);
    return false;
  });
  return result;
}

// The client's values, else the model's, else OpenAI's.
SamplingParams sampling_of(const GenerationOptions& options, const GenerationDefaults& defaults, int vocab);
// Seeds of the choices of one prompt: the first keeps the request's seed, so that n > 1 begins like n = 1.
uint64_t choice_seed(uint64_t seed, int choice);

}  // namespace sluice
