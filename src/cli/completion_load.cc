#include "cli/completion_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "server/json_writer.h"

namespace sluice::cli {

RandomPrompts::RandomPrompts(PromptForm form, uint64_t seed, int shared_prefix, int vocabulary)
    : form_(form),
      first_id_(std::min(1000, vocabulary / 2)),
      ids_(std::max<uint64_t>(1, uint64_t(std::min(8000, vocabulary)) - first_id_)),
      random_(seed) {
  std::mt19937_64 shared(seed ^ 0x9e3779b97f4a7c15u);
  append(prefix_, shared_prefix, shared);
}

std::string RandomPrompts::next(int tokens) {
  std::string prompt = prefix_;
  append(prompt, tokens, random_);
  if (form_ == PromptForm::ids) return "[" + prompt + "]";
  std::string quoted;
  append_json_string(quoted, prompt);
  return quoted;
}

void RandomPrompts::append(std::string& out, int count, std::mt19937_64& random) const {
  // One token each in most vocabularies.
  static constexpr const char* kWords[] = {"time",  "water", "house", "light", "river", "stone",
                                           "paper", "music", "green", "north", "table", "glass",
                                           "night", "world", "field", "voice"};
  for (int i = 0; i < count; ++i) {
    if (form_ == PromptForm::ids)
      out += fmt::format("{}{}", out.empty() ? "" : ",", first_id_ + random() % ids_);
    else
      out += fmt::format(" {}", kWords[random() % std::size(kWords)]);
  }
}

Exchange completion(const std::string& model, const std::string& prompt, int max_tokens, PromptForm form) {
  std::string json;
  JsonWriter body(json);
  body.begin_object();
  body.key("model").string(model);
  body.key("prompt").raw(prompt);
  body.key("max_tokens").integer(max_tokens);
  body.key("temperature").integer(0);
  body.key("stream").boolean(true);
  body.key("stream_options").raw(R"({"include_usage":true})");
  if (form != PromptForm::plain_text) body.key("ignore_eos").boolean(true);
  body.end_object();
  return {"POST", "/v1/completions", json};
}

}  // namespace sluice::cli
