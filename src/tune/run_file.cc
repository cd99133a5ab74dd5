#include "tune/run_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "server/json.h"
#include "server/json_fields.h"

namespace sluice::tune {
namespace {

constexpr int kVersion = 1;
constexpr const char* kEnds[] = {"completed", "failed", "open"};

std::string text_of(const JsonView& object, std::string_view name) {
  const auto value = object.find(name);
  return std::string(value ? value->string().value_or("") : "");
}
double number_of(const JsonView& object, std::string_view name) {
  const auto value = object.find(name);
  return value ? value->number().value_or(0) : 0;
}
std::string raw_of(const JsonView& object, std::string_view name) {
  const auto value = object.find(name);
  return value && !value->is_null() ? value->text() : "";
}

// Calls f for each element of the list of that name.
template <typename F>
void each_of(const JsonView& object, std::string_view name, F&& f) {
  const auto list = object.find(name);
  if (!list || !list->is_array()) return;
  list->each([&](JsonView value) {
    f(value);
    return true;
  });
}

double at(const JsonView& list, size_t i) { return i < list.size() ? list.at(i).number().value_or(0) : 0; }

void write_requests(JsonWriter& out, const Run& run) {
  out.key("requests").begin_array();
  for (const Request& r : run.requests) {
    out.begin_array().number(r.sent_s).number(r.first_s).number(r.ended_s).integer(r.tokens);
    out.integer(int(r.end)).end_array();
  }
  out.end_array();
}

void read_lists(const JsonView& object, Run& run) {
  if (const auto settings = object.find("settings"); settings && settings->is_object())
    settings->each_member([&](std::string_view key, JsonView value) {
      run.configuration.set(std::string(key), std::string(value.string().value_or("")));
      return true;
    });
  each_of(object, "requests", [&](const JsonView& r) {
    const auto end = Request::End(std::clamp(int(at(r, 4)), 0, 2));
    run.requests.push_back({at(r, 0), at(r, 1), at(r, 2), int(at(r, 3)), end});
  });
  if (const auto list = object.find("between_tokens_ms"); list && list->is_array())
    for (size_t i = 0; i < run.between_tokens_ms.size(); ++i) run.between_tokens_ms[i] = at(*list, i);
  each_of(object, "batches", [&](const JsonView& b) { run.batches.push_back({at(b, 0), at(b, 1)}); });
  each_of(object, "long_contexts", [&](const JsonView& l) {
    run.long_contexts.push_back({int(at(l, 0)), at(l, 1), at(l, 2), at(l, 3)});
  });
}

}  // namespace

std::string to_line(const Run& run) {
  std::string line;
  JsonWriter out(line);
  out.begin_object().key("sluice_run").integer(kVersion);
  out.key("model").string(run.configuration.model).key("settings").begin_object();
  for (const Setting& s : run.configuration.settings) out.key(s.key).string(s.value);
  out.end_object();
  out.key("load").string(run.load).key("concurrency").integer(run.concurrency);
  out.key("device").string(run.device).key("ready_s").number(run.ready_s).key("load_s").number(run.load_s);
  out.key("steps").number(run.steps).key("steps_of_one").number(run.steps_of_one);
  out.key("prefix_looked_up").number(run.prefix_looked_up).key("prefix_found").number(run.prefix_found);
  out.key("between_tokens_ms").begin_array();
  for (const double v : run.between_tokens_ms) out.number(v);
  out.end_array().key("batches").begin_array();
  for (const BatchBar& b : run.batches) out.begin_array().number(b.upto).number(b.steps).end_array();
  out.end_array().key("long_contexts").begin_array();
  for (const LongContext& l : run.long_contexts)
    out.begin_array()
        .integer(l.tokens)
        .number(l.tok_s)
        .number(l.first_token_ms)
        .number(l.hit_share)
        .end_array();
  out.end_array();
  write_raw(out, "diagnosis", run.diagnosis), write_raw(out, "attribution", run.attribution);
  out.key("request_columns")
      .raw(fmt::format(R"(["sent_s","first_token_s","ended_s","tokens","{}"])", fmt::join(kEnds, "|")));
  write_requests(out, run);
  out.end_object();
  return line;
}

Result<Run> from_line(const std::string& line) {
  const Result<JsonDocument> json = JsonDocument::parse(line);
  if (!json) return json.error();
  const JsonView object = json->root();
  if (!object.is_object() || !object.find("sluice_run") || object.find("sluice_run")->integer() != kVersion)
    return Error{ErrorCode::kCorrupt, "no measurement of this version of sluice tune"};
  Run run;
  run.configuration.model = text_of(object, "model");
  run.load = text_of(object, "load"), run.device = text_of(object, "device");
  run.concurrency = int(number_of(object, "concurrency"));
  run.ready_s = number_of(object, "ready_s"), run.load_s = number_of(object, "load_s");
  run.steps = number_of(object, "steps"), run.steps_of_one = number_of(object, "steps_of_one");
  run.prefix_looked_up = number_of(object, "prefix_looked_up");
  run.prefix_found = number_of(object, "prefix_found");
  run.diagnosis = raw_of(object, "diagnosis"), run.attribution = raw_of(object, "attribution");
  read_lists(object, run);
  return run;
}

Result<std::vector<Run>> read_runs(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Run> runs;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (!JsonDocument::parse(line)) continue;
    Result<Run> run = from_line(line);
    if (!run) return Error{ErrorCode::kCorrupt, fmt::format("{}:{}: {}", path, number, run.error().message)};
    runs.push_back(std::move(*run));
  }
  return runs;
}

Status append_run(const std::string& path, const Run& run) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  // A line of its own, whatever a write that was cut short left before it.
  file << '\n' << to_line(run) << '\n' << std::flush;
  if (!file) return Error{ErrorCode::kIo, path + ": cannot be written"};
  return {};
}

}  // namespace sluice::tune
