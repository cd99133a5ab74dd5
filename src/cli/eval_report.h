// The result of `sluice eval` as a table, as JSON and as a page with a plot.
#pragma once

#include <string>
#include <vector>

#include "engine/kv_evaluation.h"

namespace sluice::cli {

struct EvalSpeed {
  int batch = 1;
  double step_s = 0;
  double read_bytes_s = 0;  // weights and cached tokens that a step reads, by its time

  double tok_s() const { return batch / step_s; }
};

// A model with a precision of its cache.
struct EvalRow {
  std::string model, precision;
  KvEvaluation found;
  size_t weight_bytes = 0;  // as the device keeps them
  std::vector<EvalSpeed> speed{};

  double loss() const { return found.perplexity / found.full_perplexity - 1; }
};

// Precisions of one model's cache: the table and the members that there are always.
std::string precision_table(const std::vector<EvalRow>& rows);
std::string comparison_table(const std::vector<EvalRow>& rows, const std::string& baseline);
// The first row's members, then all rows as "results". `baseline` empty: none was named.
std::string evaluation_json(const std::vector<EvalRow>& rows, const std::string& baseline);
// Needs nothing from anywhere: style and the plot (SVG) stand in it.
std::string evaluation_html(const std::vector<EvalRow>& rows, const std::string& baseline,
                            const std::string& data);

}  // namespace sluice::cli
