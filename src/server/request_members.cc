#include "server/request_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <mutex>

#include "base/log.h"
#include "base/meter.h"
#include "server/cache_salt.h"
#include "server/grammar_members.h"
#include "server/limits.h"

namespace sluice {

Error member_error(std::string message, std::string field) {
  return Error{ErrorCode::kInvalidArgument, std::move(message), std::move(field)};
}

Status each_message(JsonView value, const std::function<Status(JsonView, const std::string&)>& read) {
  if (!value.is_array()) return member_error("must be an array of messages.");
  if (value.size() == 0) return member_error("must hold at least one message.");
  if (value.size() > size_t(limits::kMessages))
    return member_error(fmt::format("holds more than {} messages.", limits::kMessages));
  Status status;
  int i = 0;
  value.each([&](JsonView message) {
    status = read(message, "messages[" + std::to_string(i++) + "]");
    return status.ok();
  });
  return status;
}

namespace {

Status wrong_type(std::string_view wanted, JsonView value) {
  return member_error(fmt::format("must be {}, not {}.", wanted, value.type_name()));
}

}  // namespace

Status read_boolean(JsonView value, bool& out) {
  const auto v = value.boolean();
  if (!v) return wrong_type("a boolean", value);
  out = *v;
  return {};
}

Status read_integer(JsonView value, int64_t low, int64_t high, int& out) {
  const auto v = value.integer();
  const std::string wanted = fmt::format("an integer from {} to {}", low, high);
  if (!v && value.type() != JsonView::Type::unsigned_integer) return wrong_type(wanted, value);
  if (!v || *v < low || *v > high) return member_error("must be " + wanted + ".");
  out = int(*v);
  return {};
}

Status read_number(JsonView value, double low, double high, std::optional<float>& out) {
  const auto v = value.number();
  const std::string wanted = fmt::format("a number from {:g} to {:g}", low, high);
  if (!v) return wrong_type(wanted, value);
  if (!(*v >= low && *v <= high)) return member_error("must be " + wanted + ".");
  out = float(*v);
  return {};
}

Status read_text(JsonView value, std::string& out) {
  const auto v = value.string();
  if (!v) return wrong_type("a string", value);
  out = std::string(*v);
  return {};
}

Status read_token_ids(JsonView value, int vocab, size_t limit, std::vector<int32_t>& out) {
  if (!value.is_array()) return wrong_type("an array of token ids", value);
  if (value.size() > limit) return member_error(fmt::format("holds more than {} token ids.", limit));
  out.reserve(value.size());
  Status status;
  value.each([&](JsonView item) {
    const auto id = item.integer();
    if (!id || *id < 0 || *id >= vocab) {
      status = member_error(fmt::format("holds an entry ({}) that is not a token id from 0 to {}.",
                                        id ? std::to_string(*id) : std::string(item.type_name()), vocab - 1));
      return false;
    }
    out.push_back(int32_t(*id));
    return true;
  });
  return status;
}

Status SeenNames::add(std::string_view name) {
  for (std::string_view seen : names_) {
    if (seen == name) return member_error("is given more than once.");
  }
  names_.push_back(name);
  return {};
}

namespace {

using Options = GenerationOptions;
using Bounds = RequestBounds;

Status read_stop(JsonView value, Options& o, const Bounds&) {
  const auto add = [&](JsonView item) -> Status {
    const auto text = item.string();
    if (!text) return member_error("must be a string or an array of strings.");
    if (text->empty()) return member_error("must not hold an empty string: it would match at once.");
    if (text->size() > limits::kStopBytes)
      return member_error(fmt::format("holds a string of more than {} bytes.", limits::kStopBytes));
    o.stop.emplace_back(*text);
    return {};
  };
  if (!value.is_array()) return add(value);
  if (value.size() > size_t(limits::kStopStrings)) {
    return member_error(fmt::format("may hold at most {} strings.", limits::kStopStrings));
  }
  Status status;
  value.each([&](JsonView item) {
    status = add(item);
    return status.ok();
  });
  return status;
}

Status read_logit_bias(JsonView value, Options& o, const Bounds& bounds) {
  if (!value.is_object()) return wrong_type("an object from token id to number", value);
  if (value.size() > size_t(limits::kLogitBias)) {
    return member_error(fmt::format("may hold at most {} entries.", limits::kLogitBias));
  }
  Status status;
  value.each_member([&](std::string_view name, JsonView item) {
    int id = -1;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), id);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
    const auto bias = item.number();
    if (!whole || id < 0 || id >= bounds.vocab) {
      status = member_error(fmt::format("keys must be token ids from 0 to {}.", bounds.vocab - 1));
    } else if (!bias || !(*bias >= -100 && *bias <= 100)) {
      status = member_error("values must be numbers from -100 to 100.", "logit_bias." + std::to_string(id));
    } else {
      for (const auto& entry : o.logit_bias) {
        if (entry.first == id) status = member_error("names a token id twice.");
      }
      o.logit_bias.emplace_back(id, float(*bias));
    }
    return status.ok();
  });
  return status;
}

Status read_stream_options(JsonView value, Options& o, const Bounds&) {
  if (!value.is_object()) return wrong_type("an object", value);
  const auto include = value.find("include_usage");
  if (!include || include->is_null()) return {};
  Status status = read_boolean(*include, o.include_usage);
  if (!status.ok()) return member_error("must be a boolean.", "stream_options.include_usage");
  return {};
}

Status read_seed(JsonView value, Options& o, const Bounds&) {
  const auto v = value.integer();
  if (v) {
    o.seed = uint64_t(*v);
  } else {
    return member_error("must be a 64-bit signed integer.");
  }
  return {};
}

Status read_top_k(JsonView value, Options& o, const Bounds&) {
  int top_k = 0;
  Status status = read_integer(value, -1, INT32_MAX, top_k);
  if (status.ok()) o.top_k = top_k < 0 ? 0 : top_k;
  return status;
}

Status read_max_tokens(JsonView value, Options& o, const Bounds&) {
  int tokens = 0;
  Status status = read_integer(value, 0, INT32_MAX, tokens);
  if (status.ok()) o.max_tokens = tokens;
  return status;
}

Status read_special(JsonView value, Options& o, const Bounds&) {
  bool skip = true;
  Status status = read_boolean(value, skip);
  o.show_control = !skip;
  return status;
}

// A lane's name; or vLLM's integer, where lower is earlier and 0 is what everybody has.
Status read_priority(JsonView value, Options& o, const Bounds&) {
  if (const auto rank = value.integer()) {
    if (*rank != 0) o.lane = *rank < 0 ? Lane::interactive : Lane::batch;
    return {};
  }
  if (const auto name = value.string()) o.lane = lane_named(*name);
  if (o.lane) return {};
  return member_error(fmt::format("must be one of {}, or an integer (lower is earlier).", kLaneNames));
}

Status read_cache_salt(JsonView value, Options& o, const Bounds&) {
  const auto word = value.string();
  if (!word) return wrong_type("a string", value);
  if (word->size() > limits::kCacheSaltBytes)
    return member_error(fmt::format("must be at most {} bytes.", limits::kCacheSaltBytes));
  o.cache_salt = cache_salt_digest(*word);
  return {};
}

Status read_model(JsonView value, Options& o, const Bounds&) {
  std::string name;
  Status status = read_text(value, name);
  if (status.ok()) o.model = std::move(name);
  return status;
}

constexpr Member<Options> kShared[] = {
    {"model", read_model},
    {"temperature", [](JsonView v, Options& o, const Bounds&) { return read_number(v, 0, 2, o.temperature); }},
    {"top_p", [](JsonView v, Options& o, const Bounds&) { return read_number(v, 0, 1, o.top_p); }},
    {"min_p", [](JsonView v, Options& o, const Bounds&) { return read_number(v, 0, 1, o.min_p); }},
    {"top_k", read_top_k},
    {"presence_penalty",
     [](JsonView v, Options& o, const Bounds&) { return read_number(v, -2, 2, o.presence_penalty); }},
    {"frequency_penalty",
     [](JsonView v, Options& o, const Bounds&) { return read_number(v, -2, 2, o.frequency_penalty); }},
    {"repetition_penalty",
     [](JsonView v, Options& o, const Bounds&) { return read_number(v, 0.01, 100, o.repetition_penalty); }},
    {"logit_bias", read_logit_bias},
    {"seed", read_seed},
    {"max_tokens", read_max_tokens},
    {"min_tokens",
     [](JsonView v, Options& o, const Bounds&) { return read_integer(v, 0, INT32_MAX, o.min_tokens); }},
    {"ignore_eos", [](JsonView v, Options& o, const Bounds&) { return read_boolean(v, o.ignore_eos); }},
    {"stop", read_stop},
    {"stop_token_ids",
     [](JsonView v, Options& o, const Bounds& b) {
       return read_token_ids(v, b.vocab, size_t(limits::kStopIds), o.stop_ids);
     }},
    {"include_stop_str_in_output",
     [](JsonView v, Options& o, const Bounds&) { return read_boolean(v, o.include_stop_text); }},
    {"skip_special_tokens", read_special},
    {"n", [](JsonView v, Options& o, const Bounds& b) { return read_integer(v, 1, b.max_n, o.n); }},
    {"stream", [](JsonView v, Options& o, const Bounds&) { return read_boolean(v, o.stream); }},
    {"stream_options", read_stream_options},
    {"response_format", read_response_format},
    {"guided_json", read_guided_json},
    {"guided_regex", read_guided_regex},
    {"guided_choice", read_guided_choice},
    {"guided_grammar", read_guided_grammar},
    {"structured_outputs", read_structured_outputs},
    {"grammar", read_llama_grammar},
    {"json_schema", read_llama_json_schema},
    {"return_token_ids",
     [](JsonView v, Options& o, const Bounds&) { return read_boolean(v, o.return_token_ids); }},
    {"return_tokens_as_token_ids",
     [](JsonView v, Options& o, const Bounds&) { return read_boolean(v, o.tokens_as_ids); }},
    {"priority", read_priority},
    {"cache_salt", read_cache_salt},
};

// Members that change what comes back, which this server cannot do. `harmless`: a value that asks for nothing.
struct Refused {
  std::string_view name;
  bool (*harmless)(JsonView value);
};

bool never(JsonView) { return false; }
bool is_false(JsonView v) { return v.boolean() == false; }
bool is_true(JsonView v) { return v.boolean() == true; }
bool is_zero(JsonView v) { return v.number() == 0.0; }
bool is_one(JsonView v) { return v.number() == 1.0; }
bool is_empty(JsonView v) { return (v.is_array() || v.is_object() || v.string() == "") && v.size() == 0; }

bool only_text(JsonView v) {
  bool text = v.is_array();
  v.each([&](JsonView item) { return text = item.string() == "text"; });
  return text;
}

bool no_tool_choice(JsonView v) { return v.string() == "none" || v.string() == "auto"; }

constexpr Refused kRefused[] = {
    {"tools", is_empty},
    {"tool_choice", no_tool_choice},
    {"functions", is_empty},
    {"function_call", no_tool_choice},
    {"guided_whitespace_pattern", never},
    {"grammar_lazy", is_false},
    {"modalities", only_text},
    {"audio", never},
    {"prediction", never},
    {"web_search_options", never},
    {"reasoning_effort", never},
    {"verbosity", never},
    {"thinking", never},
    {"chat_template", never},
    {"stop_regex", never},
    {"detokenize", is_true},
    {"documents", is_empty},
    {"suffix", is_empty},
    {"use_beam_search", is_false},
    {"length_penalty", is_one},
    {"early_stopping", is_false},
    {"bad_words", is_empty},
    {"allowed_token_ids", never},
    {"logits_processors", is_empty},
    {"prompt_logprobs", never},
    {"truncate_prompt_tokens", never},
    {"spaces_between_special_tokens", is_true},
    {"lora", is_empty},
    {"adapter", is_empty},
    {"n_predict", never},
    {"repeat_penalty", is_one},
    {"typical_p", is_one},
    {"top_a", is_zero},
    {"tfs_z", is_one},
    {"mirostat", is_zero},
    {"dynatemp_range", is_zero},
    {"dry_multiplier", is_zero},
    {"xtc_probability", is_zero},
    {"samplers", never},
    {"n_probs", is_zero},
};

Counter& unknown_members() {
  static Counter& counter = meter::counter("sluice_http_unknown_members_total",
                                           "Request members that are not known and were ignored.");
  return counter;
}

void note_unknown(std::string_view name) {
  unknown_members().add();
  static std::mutex mutex;
  static std::vector<std::string>* names = new std::vector<std::string>;
  if (name.size() > 64) return;
  std::lock_guard lock(mutex);
  if (names->size() >= size_t(limits::kUnknownNames)) return;
  for (const auto& seen : *names) {
    if (seen == name) return;
  }
  names->emplace_back(name);
  std::string shown;
  for (char c : name) shown += c >= 0x20 && c < 0x7f ? c : '?';
  LOG(info, "request member '{}' is not known and is ignored (said once)", shown);
}

// Known, but without any effect here that a client could miss.
constexpr std::string_view kNoEffect[] = {"user",
                                          "metadata",
                                          "store",
                                          "service_tier",
                                          "parallel_tool_calls",
                                          "safety_identifier",
                                          "prompt_cache_key",
                                          "cache_prompt"};

}  // namespace

void register_member_meters() { unknown_members(); }

std::optional<Status> read_shared_member(std::string_view name, JsonView value, Options& options,
                                         const Bounds& bounds) {
  for (const auto& member : kShared) {
    if (member.name == name) return member.read(value, options, bounds);
  }
  return std::nullopt;
}

bool is_shared_member(std::string_view name) {
  return std::any_of(std::begin(kShared), std::end(kShared), [&](const auto& m) { return m.name == name; });
}

// The header takes what is surely a name; anything else is counted only.
void note_ignored(std::string_view name, Options& options) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
  if (!plain || name.empty() || name.size() > 64 || options.ignored.size() >= size_t(limits::kIgnoredShown))
    return;
  if (std::find(options.ignored.begin(), options.ignored.end(), name) == options.ignored.end())
    options.ignored.emplace_back(name);
}

std::optional<Status> refuse_member(std::string_view name, JsonView value, Options& options) {
  for (const auto& refused : kRefused) {
    if (refused.name != name) continue;
    if (refused.harmless(value)) return Status();
    return Status(Error{ErrorCode::kUnsupported, "is not supported by this server; leave it out.", ""});
  }
  note_ignored(name, options);
  for (std::string_view known : kNoEffect) {
    if (known == name) return Status();
  }
  note_unknown(name);
  return std::nullopt;
}

std::optional<Lane> lane_named(std::string_view name) {
  for (int i = 0; i < kLanes; ++i) {
    if (name == lane_name(Lane(i))) return Lane(i);
  }
  return std::nullopt;
}

SamplingParams sampling_of(const Options& o, const GenerationDefaults& d, int vocab) {
  SamplingParams s;
  const auto pick = [](auto given, auto model, auto otherwise) {
    return given ? *given : model ? *model : otherwise;
  };
  s.temperature = pick(o.temperature, d.temperature, 1.0f);
  s.top_p = std::max(pick(o.top_p, d.top_p, 1.0f), 1e-6f);  // 0 means the likeliest token alone
  s.min_p = pick(o.min_p, d.min_p, 0.0f);
  s.repetition_penalty = pick(o.repetition_penalty, d.repetition_penalty, 1.0f);
  s.top_k = pick(o.top_k, d.top_k, 0);
  if (s.top_k >= vocab) s.top_k = 0;
  s.presence_penalty = o.presence_penalty.value_or(0.0f);
  s.frequency_penalty = o.frequency_penalty.value_or(0.0f);
  s.logit_bias = o.logit_bias;
  return s;
}

// SplitMix64's finalizer (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
uint64_t choice_seed(uint64_t seed, int choice) {
  if (choice == 0) return seed;
  uint64_t z = seed + uint64_t(choice) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace sluice
