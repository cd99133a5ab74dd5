// `sluice inspect`: what a model file holds, from its header.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "cli/commands.h"
#include "cli/memory_plan.h"
#include "engine/make_engine.h"
#include "engine/model_settings.h"
#include "model/checkpoint.h"
#include "server/json_writer.h"

namespace sluice::cli {
namespace {

std::string format_name(const WeightFormat& f) {
  std::string name = weight_element_name(f.element);
  if (f.group) name += fmt::format(" x{}", f.group);
  if (f.has_min) name += " +min";
  return name;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t d : shape) out += fmt::format("{}{}", out.empty() ? "" : " x ", d);
  return out;
}

// Tokenizer and template, made as the server makes them; what is wrong with them is a fact too.
struct TextFacts {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::string tokenizer_error, template_error;
};

TextFacts text_facts(const Checkpoint& checkpoint, const std::string& template_file) {
  TextFacts facts;
  Result<VocabularyData> vocabulary = read_vocabulary(checkpoint);
  Result<std::unique_ptr<Tokenizer>> tokenizer =
      vocabulary ? Tokenizer::create(std::move(*vocabulary)) : std::move(vocabulary).error();
  if (tokenizer)
    facts.tokenizer = std::move(*tokenizer);
  else
    facts.tokenizer_error = tokenizer.error().message;

  Result<ModelSettings> settings = read_settings(checkpoint, template_file);
  if (!settings) {
    facts.template_error = settings.error().message;
  } else if (!settings->chat_template.empty()) {
    Result<ChatTemplate> made = ChatTemplate::create(settings->chat_template, "", "");
    if (made)
      facts.chat_template.emplace(std::move(*made));
    else
      facts.template_error = made.error().message;
  }
  return facts;
}

void print_tensors(const std::vector<TensorInfo>& tensors, bool each) {
  fmt::print("\ntensors\n");
  if (each) {
    for (const TensorInfo& t : tensors)
      fmt::print("  {:44}{:8}{:>18}{:>13}  -> {}{}\n", t.name, t.type, shape_text(t.shape), t.bytes,
                 format_name(t.canonical), t.lossy ? "  rounds" : "");
    return;
  }
  struct Sum {
    int count = 0;
    size_t bytes = 0;
    bool lossy = false;
  };
  std::map<std::pair<std::string, std::string>, Sum> by_type;
  for (const TensorInfo& t : tensors) {
    Sum& sum = by_type[{t.type, format_name(t.canonical)}];
    ++sum.count, sum.bytes += t.bytes, sum.lossy |= t.lossy;
  }
  for (const auto& [types, sum] : by_type)
    fmt::print("  {:5} {:8}{:>10.1f} MB  computed as {}{}\n", sum.count, types.first, double(sum.bytes) / 1e6,
               types.second, sum.lossy ? "; this conversion rounds" : "");
}

void print_text_facts(const TextFacts& text) {
  fmt::print("\ntokenizer\n");
  if (const Tokenizer* t = text.tokenizer.get()) {
    fmt::print("  {} tokens, BOS {}{}, EOS {}{}\n  ends an answer:", t->size(), t->bos_id(),
               t->adds_bos() ? " (added)" : "", t->eos_id(), t->adds_eos() ? " (added)" : "");
    for (const int32_t id : t->end_of_generation_ids())
      fmt::print(" {} {}", id, t->piece(id, ControlText::kShow));
    fmt::print("\n");
  } else {
    fmt::print("  {}\n", text.tokenizer_error);
  }
  fmt::print("\nchat template\n");
  if (!text.chat_template) {
    fmt::print("  {}\n", text.template_error.empty() ? "none: chat requests need --chat-template FILE"
                                                     : text.template_error);
    return;
  }
  const ChatTemplate& c = *text.chat_template;
  fmt::print("  {} bytes{}{}\n", c.source().size(), c.renders_tools() ? ", speaks of tools" : "",
             c.takes_content_parts() ? ", takes content parts" : "");
}

void print_json(const MemoryPlan& plan, const std::vector<TensorInfo>& tensors, const TextFacts& text) {
  const ModelSpec& s = plan.spec;
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  out.key("path")
      .string(plan.path)
      .key("format")
      .string(plan.format)
      .key("architecture")
      .string(s.architecture)
      .key("name")
      .string(s.name);
  out.key("numbers").begin_object();
  out.key("layers")
      .integer(s.layers)
      .key("hidden")
      .integer(s.hidden)
      .key("heads")
      .integer(s.heads)
      .key("kv_heads")
      .integer(s.kv_heads);
  out.key("head_dim")
      .integer(s.head_dim)
      .key("ffn")
      .integer(s.ffn)
      .key("vocab")
      .integer(s.vocab)
      .key("context")
      .integer(s.context);
  out.key("window")
      .integer(s.window)
      .key("tied_head")
      .boolean(s.tied_head)
      .key("rope_base")
      .number(double(s.rope.base));
  out.end_object();
  out.key("memory").begin_object();
  out.key("file_bytes")
      .integer(int64_t(plan.file_bytes))
      .key("weight_bytes")
      .integer(int64_t(plan.device_bytes ? plan.device_bytes : plan.canonical_bytes));
  out.key("kv_bytes_per_token")
      .integer(int64_t(plan.kv_bytes_per_token))
      .key("kv_bytes_full_context")
      .integer(int64_t(plan.kv_bytes_full));
  out.end_object();
  out.key("device");
  if (plan.device.empty())
    out.null();
  else
    out.string(plan.device);
  out.key("tokenizer");
  if (const Tokenizer* t = text.tokenizer.get()) {
    out.begin_object();
    out.key("tokens").integer(t->size()).key("bos_id").integer(t->bos_id()).key("eos_id").integer(t->eos_id());
    out.key("adds_bos")
        .boolean(t->adds_bos())
        .key("adds_eos")
        .boolean(t->adds_eos())
        .key("end_ids")
        .integers(t->end_of_generation_ids());
    out.end_object();
  } else {
    out.begin_object().key("error").string(text.tokenizer_error).end_object();
  }
  out.key("chat_template");
  if (text.chat_template)
    out.string(text.chat_template->source());
  else
    out.null();
  if (!text.template_error.empty()) out.key("chat_template_error").string(text.template_error);
  out.key("tensors").begin_array();
  for (const TensorInfo& t : tensors) {
    out.begin_object();
    out.key("name").string(t.name).key("type").string(t.type).key("shape").begin_array();
    for (const int64_t d : t.shape) out.integer(d);
    out.end_array();
    out.key("bytes")
        .integer(int64_t(t.bytes))
        .key("canonical")
        .string(format_name(t.canonical))
        .key("lossy")
        .boolean(t.lossy);
    out.end_object();
  }
  out.end_array().end_object();
  fmt::print("{}\n", json);
}

}  // namespace

int inspect(const Config& config, const InspectOptions& options) {
  Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(config.model.path);
  if (!checkpoint) return failure(checkpoint.error());
  if (Status fits = check_context(config.model.engine, (*checkpoint)->spec(), config.model.path); !fits)
    return failure(fits.error());
  MemoryPlan plan = plan_memory(**checkpoint, config);
  // A card takes a second to open, and a fifth of a GiB: only for those who ask what becomes of the model
  // there.
  if (options.device) {
    Result<std::unique_ptr<Backend>> backend =
        backend_for(plan.spec, config.model.engine, config.model.device, config.model.cpu);
    if (!backend) return failure(backend.error());
    plan_device(plan, **checkpoint, **backend);
  }
  const std::vector<TensorInfo> tensors = (*checkpoint)->tensors();
  const TextFacts text = text_facts(**checkpoint, config.model.chat_template_file);
  if (options.json) {
    print_json(plan, tensors, text);
    return 0;
  }
  fmt::print("{}", describe(plan));
  print_tensors(tensors, options.tensors);
  print_text_facts(text);
  return 0;
}

}  // namespace sluice::cli
