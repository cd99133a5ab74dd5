#include "cli/eval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/json_writer.h"

namespace sluice::cli {
namespace {

void put(JsonWriter& out, const EvalRow& row) {
  const KvEvaluation& f = row.found;
  out.key("model").string(row.model);
  out.key("kv_precision").string(row.precision);
  out.key("tokens").integer(f.tokens);
  out.key("perplexity").number(f.perplexity);
  out.key("full_perplexity").number(f.full_perplexity);
  out.key("perplexity_increase").number(row.loss());
  out.key("mean_kl").number(f.mean_kl);
  out.key("p99_kl").number(f.p99_kl);
  out.key("top1_agreement").number(f.top1_agreement);
  out.key("kv_bytes_per_token").number(f.bytes_per_token);
  out.key("full_kv_bytes_per_token").number(f.full_bytes_per_token);
  out.key("weight_bytes").integer(int64_t(row.weight_bytes));
  out.key("speed").begin_array();
  for (const EvalSpeed& s : row.speed) {
    out.begin_object().key("batch").integer(s.batch);
    out.key("tok_s").number(s.tok_s()).key("step_ms").number(s.step_s * 1e3);
    out.key("read_gb_s").number(s.read_bytes_s / 1e9).end_object();
  }
  out.end_array();
}

std::string last_part(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.find_last_of('/') + 1);
}

std::string name_of(const EvalRow& row, const std::vector<EvalRow>& rows) {
  const bool several = std::any_of(rows.begin(), rows.end(),
                                   [&](const EvalRow& r) { return r.precision != rows.front().precision; });
  const std::string name = last_part(row.model);
  const bool clear = std::none_of(rows.begin(), rows.end(), [&](const EvalRow& r) {
    return r.model != row.model && last_part(r.model) == name;
  });
  if (!clear) return several ? row.model + " kv " + row.precision : row.model;
  return several ? name + " kv " + row.precision : name;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

struct Column {
  std::string title, value;
};

// The first whose speed was measured; null: none's was.
const EvalRow* measured_row(const std::vector<EvalRow>& rows) {
  const auto at = std::find_if(rows.begin(), rows.end(), [](const EvalRow& r) { return !r.speed.empty(); });
  return at == rows.end() ? nullptr : &*at;
}

// A row's cells, for text and page alike.
std::vector<Column> cells(const EvalRow& row, const std::vector<EvalRow>& rows) {
  const KvEvaluation& f = row.found;
  std::vector<Column> out = {{"model", name_of(row, rows)},
                             {"weights MB", fmt::format("{:.1f}", double(row.weight_bytes) / 1e6)},
                             {"KV B/token", fmt::format("{:.0f}", f.bytes_per_token)},
                             {"perplexity", fmt::format("{:.4f}", f.perplexity)},
                             {"more", fmt::format("{:+.2f} %", 100 * row.loss())},
                             {"mean KL", fmt::format("{:.5f}", f.mean_kl)},
                             {"99 % KL", fmt::format("{:.4f}", f.p99_kl)},
                             {"same top 1", fmt::format("{:.2f} %", 100 * f.top1_agreement)}};
  const EvalRow* measured = measured_row(rows);
  if (!measured) return out;
  const bool own = !row.speed.empty();
  for (size_t i = 0; i < measured->speed.size(); i++)
    out.push_back({fmt::format("tok/s at {}", measured->speed[i].batch),
                   own ? fmt::format("{:.1f}", row.speed[i].tok_s()) : "-"});
  out.push_back({fmt::format("GB/s at {}", measured->speed.front().batch),
                 own ? fmt::format("{:.1f}", row.speed.front().read_bytes_s / 1e9) : "-"});
  return out;
}

// 1, 2 or 5 times a power of ten, so that four to ten of them make `range`.
double tick_step(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 4)));
  const double rest = range / 4 / power;
  return power * (rest >= 5 ? 5 : rest >= 2 ? 2 : 1);
}

// Coordinates of the plot, in its viewBox.
struct Frame {
  static constexpr double kWidth = 720, kHeight = 360, kLeft = 70, kBottom = 50, kTop = 20, kRight = 160;
  double most_x = 0, low = 0, high = 0;

  double x(double v) const { return kLeft + v / most_x * (kWidth - kLeft - kRight); }
  double y(double v) const { return kTop + (high - v) / (high - low) * (kHeight - kTop - kBottom); }
};

std::string axes(const Frame& f, int batch) {
  std::string out;
  const double end = Frame::kWidth - Frame::kRight, step_x = tick_step(f.most_x),
               step_y = tick_step(f.high - f.low);
  const int digits = std::max(0, int(-std::floor(std::log10(step_y))));
  for (double v = std::ceil(f.low / step_y) * step_y; v <= f.high; v += step_y)
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" class=\"grid\"/>"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.{6}f}</text>\n",
        Frame::kLeft, f.y(v), end, Frame::kLeft - 8, f.y(v) + 4, v, digits);
  for (double v = 0; v <= f.most_x; v += step_x)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:g}</text>\n", f.x(v),
                       Frame::kHeight - 30, v);
  return out + fmt::format(
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">tokens/s at batch {}</text>\n"
                   "<text x=\"16\" y=\"{:.1f}\" transform=\"rotate(-90 16 {:.1f})\" text-anchor=\"middle\">"
                   "perplexity (lower is better)</text>\n",
                   (Frame::kLeft + end) / 2, Frame::kHeight - 8, batch, Frame::kHeight / 2, Frame::kHeight / 2);
}

// The perplexity above the tokens per second at the first batch; empty where no speed was measured.
std::string plot(std::vector<EvalRow> rows) {
  const double baseline = rows[0].found.full_perplexity;
  std::erase_if(rows, [](const EvalRow& r) { return r.speed.empty(); });
  if (rows.empty()) return {};
  Frame f{.low = baseline, .high = baseline};
  for (const EvalRow& r : rows) {
    f.most_x = std::max(f.most_x, r.speed.front().tok_s());
    f.low = std::min(f.low, r.found.perplexity), f.high = std::max(f.high, r.found.perplexity);
  }
  const double room = std::max(0.1 * (f.high - f.low), 1e-3 * f.high);
  f.low -= room, f.high += room, f.most_x *= 1.1;
  std::string out =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"perplexity against throughput\">\n",
                  Frame::kWidth, Frame::kHeight) +
      axes(f, rows[0].speed.front().batch);
  const double base = f.y(baseline);
  out += fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" class=\"baseline\"/>"
      "<text x=\"{3:.1f}\" y=\"{4:.1f}\">baseline</text>\n",
      Frame::kLeft, base, Frame::kWidth - Frame::kRight, Frame::kWidth - Frame::kRight + 6, base + 4);
  // From the top down, each name no closer to the one before than a line.
  std::stable_sort(rows.begin(), rows.end(),
                   [](const EvalRow& a, const EvalRow& b) { return a.found.perplexity > b.found.perplexity; });
  double least = 0;
  for (const EvalRow& r : rows) {
    const double at = f.x(r.speed.front().tok_s()), height = f.y(r.found.perplexity);
    const double name = std::max(least, height - 6);
    least = name + 14;
    const bool is_left =
        at > (Frame::kLeft + Frame::kWidth - Frame::kRight) / 2;  // else a long name is cut off
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/><text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", at,
        height, is_left ? at - 9 : at + 9, name, is_left ? " text-anchor=\"end\"" : "",
        escaped(name_of(r, rows)));
  }
  return out + "</svg>\n";
}

}  // namespace

std::string precision_table(const std::vector<EvalRow>& rows) {
  std::string out = fmt::format("{:>10}{:>9}{:>12}{:>12}{:>10}{:>11}{:>12}{:>9}\n", "precision", "tokens",
                                "perplexity", "in full", "more", "mean KL", "same top 1", "bytes");
  for (const EvalRow& row : rows)
    out += fmt::format("{:>10}{:>9}{:>12.4f}{:>12.4f}{:>8.3f} %{:>11.6f}{:>10.2f} %{:>7.1f} %\n", row.precision,
                       row.found.tokens, row.found.perplexity, row.found.full_perplexity, 100 * row.loss(),
                       row.found.mean_kl, 100 * row.found.top1_agreement,
                       100 * row.found.bytes_per_token / row.found.full_bytes_per_token);
  return out;
}

std::string comparison_table(const std::vector<EvalRow>& rows, const std::string& baseline) {
  std::vector<std::vector<Column>> lines;
  for (const EvalRow& row : rows) lines.push_back(cells(row, rows));
  std::vector<size_t> widths;
  for (size_t c = 0; c < lines[0].size(); c++) {
    widths.push_back(lines[0][c].title.size());
    for (const auto& line : lines) widths[c] = std::max(widths[c], line[c].value.size());
  }
  std::string out = fmt::format("{} tokens, beside {} with perplexity {:.4f}\n", rows[0].found.tokens,
                                baseline.empty() ? "the model with its cache in full" : baseline,
                                rows[0].found.full_perplexity);
  const auto add = [&](const std::vector<Column>& line, bool title) {
    for (size_t c = 0; c < line.size(); c++) {
      const std::string& text = title ? line[c].title : line[c].value;
      out += c == 0 ? fmt::format("{:<{}}", text, widths[c]) : fmt::format("  {:>{}}", text, widths[c]);
    }
    out += '\n';
  };
  add(lines[0], true);
  for (const auto& line : lines) add(line, false);
  return out;
}

std::string evaluation_json(const std::vector<EvalRow>& rows, const std::string& baseline) {
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  if (!baseline.empty()) out.key("baseline").string(baseline);
  put(out, rows.front());
  out.key("results").begin_array();
  for (const EvalRow& row : rows) {
    out.begin_object();
    put(out, row);
    out.end_object();
  }
  out.end_array().end_object();
  return json + "\n";
}

std::string evaluation_html(const std::vector<EvalRow>& rows, const std::string& baseline,
                            const std::string& data) {
  std::string head, body;
  for (const Column& c : cells(rows[0], rows)) head += "<th>" + escaped(c.title) + "</th>";
  for (const EvalRow& row : rows) {
    body += "<tr>";
    for (const Column& c : cells(row, rows)) body += "<td>" + escaped(c.value) + "</td>";
    body += "</tr>\n";
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Accuracy against throughput</title>\n"
      "<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}}"
      "table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}td,th{{padding:.3rem "
      ".7rem;text-align:right;"
      "border-bottom:1px solid "
      "#8884}}td:first-child,th:first-child{{text-align:left}}svg{{max-width:100%;font-size:12px}}"
      "svg "
      "text{{fill:currentColor;paint-order:stroke;stroke:Canvas;stroke-width:3px}}.grid{{stroke:#8884}}."
      "baseline{{stroke:#888;stroke-dasharray:4}}"
      "td{{white-space:nowrap}}div{{overflow-x:auto}}circle{{fill:#2563eb}}:root{{color-scheme:light "
      "dark}}</style>\n"
      "<h1>Accuracy against throughput</h1>\n<p>{} tokens of {}, beside {} with perplexity {:.4f}.</p>\n{}"
      "<div><table><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div></html>\n",
      rows[0].found.tokens, escaped(data),
      escaped(baseline.empty() ? "the model with its cache in full" : baseline), rows[0].found.full_perplexity,
      plot(rows), head, body);
}

}  // namespace sluice::cli
