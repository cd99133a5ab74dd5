// `sluice eval`: perplexity of a text with keys and values in a smaller precision, and how far the
// distributions of its tokens are from those with the cache in full.
#include <fmt/format.h>

#include "base/mapped_file.h"
#include "cli/commands.h"
#include "cli/load_progress.h"
#include "engine/kv_evaluation.h"
#include "engine/make_engine.h"
#include "engine/model_text.h"
#include "model/checkpoint.h"
#include "server/json_writer.h"

namespace sluice::cli {
namespace {

struct Row {
  std::string precision;
  KvEvaluation found;

  double loss() const { return found.perplexity / found.full_perplexity - 1; }
};

// A backend is sized once, so each precision gets one of its own.
Result<Row> evaluate(const Config& config, const EvalOptions& options, const std::string& precision) {
  auto checkpoint = open_checkpoint(config.model.path);
  if (!checkpoint) return std::move(checkpoint).error();
  EngineConfig engine = config.model.engine;
  engine.kv.precision = precision;
  const ModelSpec spec = with_window((*checkpoint)->spec(), engine.kv.sliding_window);
  auto backend = backend_for(spec, engine, config.model.device, config.model.cpu);
  if (!backend) return std::move(backend).error();
  auto text = load_text(**checkpoint, "");
  if (!text) return std::move(text).error();
  auto file = MappedFile::open(options.data);
  if (!file) return std::move(file).error();
  const auto bytes = file->bytes();
  std::vector<int32_t> ids =
      text->tokenizer->encode({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, false, false);
  if (options.max_tokens > 0) ids.resize(std::min(ids.size(), size_t(options.max_tokens)));

  LoadProgressLine progress;
  auto weights = load_weights(**checkpoint, spec, **backend, [&](size_t done, size_t total) {
    progress.show("weights", total ? double(done) / double(total) : 1);
  });
  if (!weights) return std::move(weights).error();
  const std::vector<int32_t> begin = text->tokenizer->encode("", true, false);
  const KvEvaluationWish wish{.kv = engine.kv,
                              .block_tokens = engine.block_tokens ? engine.block_tokens : 64,
                              .window_tokens = std::min(options.window_tokens, spec.context),
                              .first_id = begin.empty() ? -1 : begin.front(),
                              .progress = [&](double done) { progress.show("text", done); }};
  auto found = evaluate_kv(spec, *weights, **backend, ids, wish);
  progress.clear();
  if (!found) return std::move(found).error();
  return Row{precision, *found};
}

void put(JsonWriter& out, const Row& row) {
  const KvEvaluation& f = row.found;
  out.key("kv_precision").string(row.precision);
  out.key("tokens").integer(f.tokens);
  out.key("perplexity").number(f.perplexity);
  out.key("full_perplexity").number(f.full_perplexity);
  out.key("perplexity_increase").number(row.loss());
  out.key("mean_kl").number(f.mean_kl);
  out.key("top1_agreement").number(f.top1_agreement);
  out.key("kv_bytes_per_token").number(f.bytes_per_token);
  out.key("full_kv_bytes_per_token").number(f.full_bytes_per_token);
}

void print_json(const std::vector<Row>& rows) {
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  put(out, rows.front());
  out.key("results").begin_array();
  for (const Row& row : rows) {
    out.begin_object();
    put(out, row);
    out.end_object();
  }
  out.end_array().end_object();
  fmt::print("{}\n", json);
}

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:>10}{:>9}{:>12}{:>12}{:>10}{:>11}{:>12}{:>9}\n", "precision", "tokens", "perplexity", "in full",
             "more", "mean KL", "same top 1", "bytes");
  for (const Row& row : rows)
    fmt::print("{:>10}{:>9}{:>12.4f}{:>12.4f}{:>8.3f} %{:>11.6f}{:>10.2f} %{:>7.1f} %\n", row.precision,
               row.found.tokens, row.found.perplexity, row.found.full_perplexity, 100 * row.loss(),
               row.found.mean_kl, 100 * row.found.top1_agreement,
               100 * row.found.bytes_per_token / row.found.full_bytes_per_token);
}

}  // namespace

int eval(const Config& config, const EvalOptions& options) {
  std::vector<std::string> precisions = options.precisions;
  if (precisions.empty()) precisions.push_back(config.model.engine.kv.precision);
  std::vector<Row> rows;
  for (const std::string& precision : precisions) {
    auto row = evaluate(config, options, precision);
    if (!row) return failure(row.error());
    rows.push_back(std::move(*row));
  }
  options.json ? print_json(rows) : print_table(rows);
  return 0;
}

}  // namespace sluice::cli
