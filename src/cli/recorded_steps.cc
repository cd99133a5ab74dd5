#include "cli/recorded_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "server/json.h"
#include "server/json_writer.h"

namespace sluice::cli {
namespace {

constexpr int kVersion = 1;

// What is kept of a record: all that a fit or a later question may want.
struct Field {
  const char* name;
  int64_t StepRecord::*wide;
  int32_t StepRecord::*narrow;
  bool later = false;  // files from before it was kept have none
};
constexpr Field kFields[] = {
    {"step", &StepRecord::step, nullptr},
    {"planned_at", &StepRecord::planned_at, nullptr},
    {"plan_ns", &StepRecord::plan_ns, nullptr},
    {"build_ns", &StepRecord::build_ns, nullptr},
    {"launch_ns", &StepRecord::launch_ns, nullptr},
    {"execute_at", &StepRecord::execute_at, nullptr},
    {"execute_ns", &StepRecord::execute_ns, nullptr},
    {"commit_ns", &StepRecord::commit_ns, nullptr},
    {"idle_ns", &StepRecord::idle_ns, nullptr},
    {"gap_ns", &StepRecord::gap_ns, nullptr},
    {"kernels_ns", &StepRecord::kernels_ns, nullptr, true},
    {"to_device_ns", &StepRecord::to_device_ns, nullptr, true},
    {"to_host_ns", &StepRecord::to_host_ns, nullptr, true},
    {"tokens", nullptr, &StepRecord::tokens},
    {"sequences", nullptr, &StepRecord::sequences},
    {"one_token_sequences", nullptr, &StepRecord::one_token_sequences},
    {"logit_rows", nullptr, &StepRecord::logit_rows},
    {"longest_context", nullptr, &StepRecord::longest_context},
    {"context_tokens", &StepRecord::context_tokens, nullptr},
    {"padding", nullptr, &StepRecord::padding},
    {"running", nullptr, &StepRecord::running},
    {"waiting", nullptr, &StepRecord::waiting},
    {"blocks_used", nullptr, &StepRecord::blocks_used},
    {"admitted", nullptr, &StepRecord::admitted},
    {"preempted", nullptr, &StepRecord::preempted},
    {"sampled", nullptr, &StepRecord::sampled},
    {"ended", nullptr, &StepRecord::ended},
    {"kv_read_bytes", &StepRecord::kv_read_bytes, nullptr},
};

Error wrong(const std::string& what) { return {ErrorCode::kCorrupt, what}; }

Result<int64_t> count(const JsonView& object, const char* name, int64_t most = int64_t(1) << 62) {
  const auto member = object.find(name);
  const auto value = member ? member->integer() : std::nullopt;
  if (!value || *value < 0 || *value > most)
    return wrong(fmt::format("\"{}\" must be an integer from 0 to {}", name, most));
  return *value;
}

Status read_header(const JsonView& object, RecordedServer& server) {
  if (!object.is_object() || !object.find("sluice_steps"))
    return wrong("no file of recorded steps: its first line has no \"sluice_steps\"");
  if (object.find("sluice_steps")->integer() != kVersion)
    return wrong(fmt::format("\"sluice_steps\" must be {}: written by another version", kVersion));
  for (auto& [name, text] :
       {std::pair{"model", &server.model}, {"device", &server.device}, {"batching", &server.batching}})
    if (const auto member = object.find(name); member && member->string()) *text = *member->string();
  if (const auto card = object.find("card")) server.card = card->boolean().value_or(false);
  for (auto& [name, number] : {std::pair{"max_sequences", &server.max_sequences},
                               {"step_tokens", &server.step_tokens},
                               {"mixed_prompt_tokens", &server.mixed_prompt_tokens},
                               {"context", &server.context},
                               {"block_tokens", &server.block_tokens},
                               {"blocks", &server.blocks}}) {
    const auto value = count(object, name, 1 << 30);
    if (!value) return value.error();
    *number = int(*value);
  }
  const auto bytes = count(object, "kv_bytes_per_token");
  if (!bytes) return bytes.error();
  server.kv_bytes_per_token = *bytes;
  const auto windows = object.find("windows");
  if (!windows || !windows->is_array() || windows->size() == 0 || windows->size() > 64)
    return wrong("\"windows\" must be a list of numbers");
  for (size_t i = 0; i < windows->size(); ++i) {
    const auto window = windows->at(i).integer();
    if (!window || *window < 0 || *window > 1 << 30) return wrong("\"windows\" must be a list of numbers");
    server.windows.push_back(int(*window));
  }
  for (const auto& [name, value] : {std::pair{"context", server.context},
                                    {"block_tokens", server.block_tokens},
                                    {"blocks", server.blocks},
                                    {"max_sequences", server.max_sequences}})
    if (value == 0) return wrong(fmt::format("\"{}\" must not be 0", name));
  return {};
}

Status read_step(const JsonView& object, RecordedSteps& out) {
  if (!object.is_object()) return wrong("expected an object");
  if (object.find("dropped")) {
    const auto dropped = count(object, "dropped");
    if (!dropped) return dropped.error();
    out.dropped += *dropped;
    return {};
  }
  StepRecord record;
  for (const Field& field : kFields) {
    if (field.later && !object.find(field.name)) continue;
    const auto value = count(object, field.name, field.narrow ? INT32_MAX : INT64_MAX / 2);
    if (!value) return value.error();
    if (field.narrow)
      record.*field.narrow = int32_t(*value);
    else
      record.*field.wide = *value;
  }
  const auto pairs = object.find("prompt_pairs");
  record.prompt_pairs = pairs ? pairs->number().value_or(NAN) : NAN;
  if (!(record.prompt_pairs >= 0)) return wrong("\"prompt_pairs\" must be a number of at least 0");
  if (object.find("prompt_context_tokens")) {  // older files have none
    const auto tokens = count(object, "prompt_context_tokens");
    if (!tokens) return tokens.error();
    record.prompt_context_tokens = *tokens;
  }
  if (record.execute_ns == 0 || record.tokens == 0) return wrong("\"execute_ns\" and \"tokens\" must not be 0");
  out.steps.push_back(record);
  return {};
}

}  // namespace

StepWork RecordedSteps::work(const StepRecord& record) const {
  StepWork work;
  work.rows = record.tokens;
  work.sequences = record.sequences;
  work.one_token_sequences = record.one_token_sequences;
  work.samples = record.logit_rows;
  work.longest_context = record.longest_context;
  work.context_tokens = record.context_tokens;
  work.kv_read_tokens = record.kv_read_bytes / std::max<int64_t>(1, server.kv_bytes_per_token);
  work.prompt_pairs = record.prompt_pairs;
  work.prompt_context_tokens = record.prompt_context_tokens;
  return work;
}

std::string recorded_header(const RecordedServer& server) {
  std::string line;
  JsonWriter out(line);
  out.begin_object().key("sluice_steps").integer(kVersion);
  out.key("model").string(server.model).key("device").string(server.device);
  out.key("batching").string(server.batching).key("card").boolean(server.card);
  out.key("max_sequences").integer(server.max_sequences).key("step_tokens").integer(server.step_tokens);
  out.key("mixed_prompt_tokens").integer(server.mixed_prompt_tokens);
  out.key("context").integer(server.context).key("block_tokens").integer(server.block_tokens);
  out.key("blocks").integer(server.blocks).key("kv_bytes_per_token").integer(server.kv_bytes_per_token);
  out.key("windows").integers(server.windows);
  out.end_object();
  return line + "\n";
}

void append_recorded_step(std::string& line, const StepRecord& record) {
  JsonWriter out(line);
  out.begin_object();
  for (const Field& field : kFields)
    out.key(field.name).integer(field.narrow ? record.*field.narrow : record.*field.wide);
  out.key("prompt_pairs").number(record.prompt_pairs);
  out.key("prompt_context_tokens").integer(record.prompt_context_tokens);
  out.end_object();
  line += '\n';
}

std::string recorded_gap(int64_t dropped) { return fmt::format("{{\"dropped\":{}}}\n", dropped); }

Result<RecordedSteps> parse_recorded_steps(const std::string& text, const std::string& name) {
  RecordedSteps out;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Result<JsonDocument> json = JsonDocument::parse(line);
    Status read = !json                        ? Status(json.error())
                  : out.server.windows.empty() ? read_header(json->root(), out.server)
                                               : read_step(json->root(), out);
    if (!read) return Error{ErrorCode::kCorrupt, fmt::format("{}:{}: {}", name, number, read.error().message)};
  }
  if (out.steps.empty()) return Error{ErrorCode::kCorrupt, name + ": holds no step"};
  return out;
}

Result<RecordedSteps> read_recorded_steps(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) return Error{ErrorCode::kIo, path + ": cannot be read"};
  return parse_recorded_steps(text.str(), path);
}

}  // namespace sluice::cli
