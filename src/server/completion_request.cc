#include "server/completion_request.h"

#include "base/log.h"
#include "engine/engine.h"

namespace sluice {

namespace {

using Bounds = RequestBounds;

Status read_one_prompt(JsonView value, std::vector<PromptInput>& prompts, const Bounds& bounds) {
  if (const auto text = value.string()) {
    prompts.emplace_back(std::string(*text));
    return {};
  }
  std::vector<int32_t> ids;
  if (Status status = read_token_ids(value, bounds.vocab, SIZE_MAX, ids); !status.ok()) return status;
  if (ids.empty()) return member_error("holds an empty array of token ids.");
  prompts.emplace_back(std::move(ids));
  return {};
}

}  // namespace

Status read_prompts(JsonView value, std::vector<PromptInput>& prompts, const Bounds& bounds) {
  const char* kShape =
      "must be a string, an array of strings, an array of token ids, or an array of such arrays.";
  if (!value.is_array())
    return value.string() ? read_one_prompt(value, prompts, bounds) : Status(member_error(kShape));
  if (value.size() == 0) return member_error("is an empty array.");
  const JsonView first = value.at(0);
  if (!first.string() && !first.is_array()) {
    if (!first.number()) return member_error(kShape);
    return read_one_prompt(value, prompts, bounds);
  }
  if (value.size() > size_t(bounds.max_prompts)) {
    return member_error(fmt::format("holds {} prompts; at most {} are taken in one request.", value.size(),
                                    bounds.max_prompts));
  }
  Status status;
  value.each([&](JsonView item) {
    if (item.type() != first.type())
      status = member_error(kShape);
    else
      status = read_one_prompt(item, prompts, bounds);
    return status.ok();
  });
  return status;
}

namespace {

constexpr Member<CompletionRequest> kMembers[] = {
    {"prompt", [](JsonView v, CompletionRequest& r, const Bounds& b) { return read_prompts(v, r.prompts, b); }},
    {"echo", [](JsonView v, CompletionRequest& r, const Bounds&) { return read_boolean(v, r.echo); }},
    {"logprobs", [](JsonView v, CompletionRequest& r,
                    const Bounds&) { return read_integer(v, 0, kMaxTopLogprobs, r.logprobs); }},
    {"best_of",
     [](JsonView v, CompletionRequest& r, const Bounds&) { return read_integer(v, 0, 20, r.best_of); }},
    {"add_special_tokens",
     [](JsonView v, CompletionRequest& r, const Bounds&) { return read_boolean(v, r.add_special_tokens); }},
};

}  // namespace

Result<CompletionRequest> parse_completion_request(std::string_view body, const RequestBounds& bounds) {
  auto document = JsonDocument::parse(body);
  if (!document.ok()) return document.error();
  CompletionRequest r;
  if (Status status = read_members<CompletionRequest>(document->root(), kMembers, r, bounds); !status.ok())
    return status.error();
  if (r.prompts.empty()) return member_error("is required.", "prompt");
  if (r.best_of > 0 && r.best_of != r.options.n) {
    return Error{ErrorCode::kUnsupported, "other than n is not supported by this server; leave it out.",
                 "best_of"};
  }
  if (r.best_of > 1 && r.options.stream) return member_error("cannot be streamed.", "best_of");
  if (r.prompts.size() * size_t(r.options.n) > size_t(bounds.max_completions)) {
    return member_error(
        fmt::format("times the number of prompts is {}; at most {} completions are made in one request.",
                    r.prompts.size() * size_t(r.options.n), bounds.max_completions),
        "n");
  }
  return r;
}

}  // namespace sluice
