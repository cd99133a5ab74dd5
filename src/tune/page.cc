#include "tune/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/json.h"
#include "tune/charts.h"

namespace sluice::tune {
namespace {

// Colours hold in light and in dark; a column of labels beside the figures, above them where it is narrow.
constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5b6675;--line:#d5dbe3;--paper:#fbfcfd;--card:#fff;--kept:#2f7d5b;--dropped:#b9c2cd;--start:#b5533c;
--c0:#2f7d5b;--c1:#c98a2b;--c2:#b5533c}
@media(prefers-color-scheme:dark){:root{--ink:#e3e8ee;--dim:#98a4b3;--line:#344050;--paper:#141a22;--card:#1b232d;--kept:#4fae85;--dropped:#4c5866;--start:#d97a60;
--c0:#4fae85;--c1:#e0ab55;--c2:#d97a60}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,'DejaVu Sans',sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px 16px 64px}h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:40px 0 6px}h3{font-size:15px;margin:14px 0 2px}
p{margin:4px 0 10px;max-width:75ch}.dim{color:var(--dim)}a{color:inherit}
.heads{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;margin:18px 0}
.head{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px}.head b{font-size:26px;display:block}.head span{color:var(--dim)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{padding:5px 10px 5px 0;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:500}th:first-child,td:first-child,td.words,th.words{text-align:left}td.words{min-width:200px}tr.dropped td{color:var(--dim)}
.row{display:grid;grid-template-columns:190px 1fr;gap:10px;align-items:center}.label{font-size:14px}.figure{min-width:0}
@media(max-width:640px){.row{grid-template-columns:1fr;gap:0;margin-bottom:8px}main{padding:16px 12px 48px}}
svg.chart{display:block;overflow:visible}svg text{fill:var(--ink);font-size:12px}svg .grid{stroke:var(--line)}svg .whisker{stroke:var(--ink);stroke-width:2}
svg .range{stroke:var(--dim)}svg .roof{stroke:var(--start);stroke-width:2}svg .point{fill:var(--kept)}svg circle.point+text{fill:#fff;font-size:11px}
rect.kept{fill:var(--kept)}rect.dropped{fill:var(--dropped)}rect.start{fill:var(--start)}
.dot0{fill:var(--c0)}.dot1{fill:var(--c1)}.dot2{fill:var(--c2)}
.key{display:inline-block;margin-right:10px;font-size:13px;white-space:nowrap}.key::before{content:"";display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;background:var(--k)}
.key.dot0{--k:var(--c0)}.key.dot1{--k:var(--c1)}.key.dot2{--k:var(--c2)}
.part0{fill:#4e79a7;--k:#4e79a7}.part1{fill:#f28e2b;--k:#f28e2b}.part2{fill:#59a14f;--k:#59a14f}.part3{fill:#e15759;--k:#e15759}.part4{fill:#76b7b2;--k:#76b7b2}
.part5{fill:#edc948;--k:#edc948}.part6{fill:#b07aa1;--k:#b07aa1}.part7{fill:#9c755f;--k:#9c755f}.part8{fill:#8d99a6;--k:#8d99a6}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(260px,1fr));gap:18px;align-items:end}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.5 ui-monospace,'DejaVu Sans Mono',monospace;margin:4px 0 10px}
.finding{border-left:3px solid var(--line);padding:2px 0 2px 10px;margin:6px 0}.finding.removed{border-color:var(--kept)}ol.points{font-size:14px;margin:4px 0}
)";

std::string number(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "–";
}

std::string interval(const Estimate& e, int decimals) {
  if (!std::isfinite(e.low) || !std::isfinite(e.high)) return number(e.mean, decimals);
  return fmt::format("{} <span class=\"dim\">±{}</span>", number(e.mean, decimals),
                     number((e.high - e.low) / 2, decimals));
}

std::string label_of(const StepResult& step) {
  return escaped(step.title) + (step.measured && step.tried.size() > 1
                                    ? fmt::format(" <span class=\"dim\">{}</span>", escaped(step.chosen().name))
                                    : "");
}

class Page {
 public:
  Page(const ReportFacts& facts, const Session& session) : facts_(facts), s_(session) {
    for (const StepResult& step : s_.steps)
      if (step.measured && step.chosen().run.failure.empty()) measured_.push_back(&step);
  }

  std::string make() {
    out_ =
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width,initial-scale=1\">";
    out_ += fmt::format("<title>sluice tune: {}</title><style>{}</style></head>\n<body><main>\n",
                        escaped(facts_.model), kStyle);
    header(), waterfall(), steps(), orders(), latencies(), batches(), roofline(), attribution(), findings(),
        long_contexts(), commands();
    return out_ + "</main></body></html>\n";
  }

 private:
  void section(const char* title, const std::string& what) {
    out_ += fmt::format("<h2>{}</h2>\n<p class=\"dim\">{}</p>\n", title, what);
  }

  void head(const char* name, const std::string& from, const std::string& to, double ratio, const char* study) {
    out_ += fmt::format(
        "<div class=\"head\"><span>{}</span><b>{}</b>{} → {}<br><span>case study: {}</span></div>\n", name,
        change(ratio), from, to, study);
  }

  void header() {
    const Figures &a = s_.start().figures, &b = s_.final().figures;
    out_ += fmt::format(
        "<h1>From collapse to full speed</h1>\n<p>{} on {}<br>{}<br><span class=\"dim\">{}; {:.0f} s of "
        "measuring; <code>{}</code></span></p>\n",
        escaped(facts_.model), escaped(facts_.device), escaped(facts_.load), escaped(facts_.date), s_.spent_s,
        escaped(facts_.command));
    out_ += "<div class=\"heads\">\n";
    head("requests a second", number(a.qps.mean, 2), number(b.qps.mean, 2), b.qps.mean / a.qps.mean,
         "5.1 → 23.6 (+364.7 %)");
    head("output tokens a second", number(a.tok_s.mean, 0), number(b.tok_s.mean, 0),
         b.tok_s.mean / a.tok_s.mean, "421 → 1,842 (+337.5 %)");
    head("p95 end to end, ms", (a.p95_at_least ? "≥ " : "") + number(a.p95_ms.mean, 0),
         (b.p95_at_least ? "≥ " : "") + number(b.p95_ms.mean, 0), b.p95_ms.mean / a.p95_ms.mean,
         "4,820 → 1,120 (−76.8 %)");
    out_ +=
        "</div>\n<p><b>What to do:</b> <code>sluice serve --config sluice.yaml</code> in the folder of "
        "this page: " +
        escaped(advice(s_)) + ".</p>\n";
    if (const std::string missed = missed_slo(facts_, s_); !missed.empty())
      out_ += "<p><b>" + escaped(missed) + "</b></p>\n";
    if (!s_.left_out.empty())
      out_ += fmt::format("<p><b>Left out{}:</b> {}</p>\n",
                          s_.interrupted ? " (interrupted; run it again to go on)" : "",
                          escaped(fmt::format("{}", fmt::join(s_.left_out, ", "))));
  }

  void waterfall() {
    section("What each step gave",
            "Requests a second. A bar goes from what was kept before to what the step came to; the line is the "
            "95 % confidence "
            "interval of its windows. Grey: not kept.");
    std::vector<Span> spans;
    double before = 0;
    for (const StepResult& step : s_.steps) {
      Span span{.label = label_of(step)};
      if (step.measured && is_told(step.chosen().figures)) {
        const Figures& f = step.chosen().figures;
        span.from = before, span.to = f.qps.mean, span.low = f.qps.low, span.high = f.qps.high;
        span.style = &step == &s_.steps.front() ? "start" : step.kept ? "kept" : "dropped";
        span.said = before > 0 ? fmt::format("{} ({})", number(f.qps.mean, 2), change(f.qps.mean / before))
                               : number(f.qps.mean, 2);
        if (step.kept) before = f.qps.mean;
      } else {
        span.to = NAN, span.said = step.reason;
      }
      spans.push_back(std::move(span));
    }
    out_ += span_chart(spans);
  }

  void step_row(const StepResult& step, const Tried* t, bool best) {
    if (!t) {
      out_ += fmt::format("<tr class=\"dropped\"><td>{}</td><td colspan=\"7\" class=\"words\">{}</td></tr>\n",
                          escaped(step.title), escaped(step.reason));
      return;
    }
    const Figures& f = t->figures;
    const std::string name =
        best ? label_of(step) : fmt::format("<span class=\"dim\">also tried: {}</span>", escaped(t->name));
    const std::string reason = t->verdict.reason.empty() ? step.reason : t->verdict.reason;
    out_ += fmt::format(
        "<tr class=\"{}\"><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td><td>{}</td><td>{}</td><td "
        "class=\"words\">{}</td></tr>\n",
        best && step.kept ? "kept" : "dropped", name, best && step.kept ? "kept" : "not kept",
        interval(f.qps, 2), interval(f.tok_s, 0), f.p95_at_least ? "≥ " : "", number(f.p95_ms.mean, 0),
        f.completed, f.failed, escaped(reason));
  }

  void steps() {
    section("Figures",
            fmt::format("As the clients saw them. {} Warm-up is left out; ± is half of the 95 % confidence "
                        "interval over windows of one "
                        "load. ≥: requests were still open that had taken longer than those that ended.",
                        facts_.slo.empty() ? "" : "SLO: " + escaped(describe(facts_.slo)) + "."));
    out_ +=
        "<div "
        "class=\"scroll\"><table><thead><tr><th>step</th><th></th><th>requests/s</th><th>tokens/s</th><th>p95 "
        "ms</th><th>completed</th>"
        "<th>failed</th><th class=\"words\">why</th></tr></thead><tbody>\n";
    for (const StepResult& step : s_.steps) {
      if (!step.measured) step_row(step, nullptr, false);
      if (step.measured) step_row(step, &step.chosen(), true);
      for (size_t i = 0; i < step.tried.size(); ++i)
        if (i != step.best) step_row(step, &step.tried[i], false);
    }
    out_ += "</tbody></table></div>\n";
    if (!facts_.accuracy.empty()) out_ += "<p>4-bit weights: " + escaped(facts_.accuracy) + "</p>\n";
  }

  void orders() {
    if (facts_.orders.size() < 2) return;
    section("By the order of the steps",
            "Output tokens a second after each step against before it, in the orders that were measured here. "
            "Grey: not kept.");
    out_ += "<div class=\"scroll\"><table><thead><tr><th>order</th><th>in all</th></tr></thead><tbody>\n";
    for (const OrderedGains& o : facts_.orders) {
      std::string steps;
      for (const OrderedGains::Gain& g : o.gains)
        steps += fmt::format("{}<span{}>{} {}</span>", steps.empty() ? "" : " → ",
                             g.kept ? "" : " class=\"dim\"", escaped(g.step), change(g.ratio));
      out_ += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", steps, change(o.total));
    }
    out_ += "</tbody></table></div>\n";
  }

  void latencies() {
    section("Latency by step", "End to end, and the time to the first token. Logarithmic.");
    for (const bool first : {false, true}) {
      out_ += fmt::format("<h3>{}</h3>\n", first ? "To the first token" : "End to end");
      std::vector<DotRow> rows;
      for (const StepResult* step : measured_) {
        const Figures& f = step->chosen().figures;
        const auto& values = first ? f.first_token_ms : f.e2e_ms;
        rows.push_back({label_of(*step), {values.begin(), values.end()}, !first && f.p95_at_least});
      }
      out_ += dot_chart(rows, {"p50", "p95", "p99"});
    }
  }

  void batches() {
    section(
        "Sequences in a step",
        "Share of the steps by how many sequences they computed. Steps of one are what batching is to end.");
    out_ += "<div class=\"columns\">\n";
    for (const StepResult* step : measured_) {
      const Run& run = step->chosen().run;
      double all = 0, below = 0;
      for (const BatchBar& b : run.batches) all += b.steps;
      std::vector<Column> columns;
      for (const BatchBar& b : run.batches) {
        const std::string label = b.upto == 0   ? fmt::format(">{:.0f}", below)
                                  : b.upto == 1 ? "1"
                                                : fmt::format("≤{:.0f}", b.upto);
        columns.push_back({label, all > 0 ? b.steps / all : 0});
        below = b.upto;
      }
      out_ += fmt::format(
          "<div><h3>{}</h3><p class=\"dim\">{:.0f} % of {:.0f} steps compute one sequence</p>{}</div>\n",
          label_of(*step), 100 * share_of_one(run), run.steps, column_chart(columns));
    }
    out_ += "</div>\n";
  }

  void roofline() {
    Roof roof;
    std::vector<RoofPoint> points;
    for (const StepResult* step : measured_) {
      const auto document = JsonDocument::parse(step->chosen().run.diagnosis);
      const auto seen = document ? document->root().find("seen") : std::nullopt;
      const auto read = [&](const char* name) {
        const auto value = seen ? seen->find(name) : std::nullopt;
        return value ? value->number().value_or(0) : 0;
      };
      roof.flops_s = std::max(roof.flops_s, read("peak_flops_s")),
      roof.bytes_s = std::max(roof.bytes_s, read("peak_bytes_s"));
      points.push_back({step->title, read("flops_s"), read("bytes_s")});
    }
    const std::string chart = roofline_chart(roof, points);
    if (chart.empty()) return;
    section("Roofline",
            "What steps do while the device computes, as counted from the model's shape, under what this "
            "machine was measured to do: reads of "
            "memory (the slope) and large products (the level).");
    out_ += chart;
  }

  void attribution() {
    std::vector<PartRow> rows;
    for (const StepResult* step : measured_) {
      const auto document = JsonDocument::parse(step->chosen().run.attribution);
      const auto spans = document ? document->root().find("spans") : std::nullopt;
      if (!spans || !spans->is_array() || spans->size() == 0) continue;
      PartRow row{label_of(*step), {}};
      spans->each([&](JsonView span) {
        const auto name = span.find("name"), share = span.find("share");
        if (name && share)
          row.parts.push_back({std::string(name->string().value_or("")), share->number().value_or(0)});
        return true;
      });
      rows.push_back(std::move(row));
    }
    if (rows.empty()) return;
    section("Where a request's time went",
            "Shares of the mean request, from its first byte to its last, by the server's own account.");
    out_ += part_chart(rows);
  }

  // Of each server once: where a step was not kept, the next one begins where it did.
  void findings() {
    section("What the doctor found",
            "Of the server before each step; marked green is what the step is there to remove.");
    const StepResult* before = nullptr;
    for (size_t i = 1; i < s_.steps.size(); ++i) {
      const StepResult& step = s_.steps[i];
      const StepResult* base = &s_.steps.front();
      for (size_t j = 1; j < i; ++j)
        if (s_.steps[j].kept) base = &s_.steps[j];
      if (!step.measured) continue;
      out_ += fmt::format("<h3>Before “{}”</h3>\n", escaped(step.title));
      if (base == before)
        out_ += fmt::format(
            "<p>The same server as before the step above{}.</p>\n",
            step.named_before.empty() ? "" : "; this step is there for <b>" + step.named_before + "</b>");
      else
        list_findings(base->chosen().run.diagnosis, step.named_before);
      before = base;
    }
    out_ += "<h3>At the end</h3>\n";
    list_findings(s_.final().run.diagnosis, "");
  }

  void list_findings(const std::string& diagnosis, const std::string& removed) {
    const auto document = JsonDocument::parse(diagnosis);
    const auto found = document ? document->root().find("findings") : std::nullopt;
    if (!found || !found->is_array() || found->size() == 0) {
      out_ += "<p class=\"dim\">Nothing that costs throughput is evident.</p>\n";
      return;
    }
    found->each([&](JsonView f) {
      const auto words = [&](const char* name) {
        const auto value = f.find(name);
        return std::string(value ? value->string().value_or("") : "");
      };
      const auto lost = f.find("lost");
      out_ += fmt::format(
          "<div class=\"finding{}\"><b>{}</b> <span class=\"dim\">takes about {:.0f} %</span><br>{}</div>\n",
          words("cause") == removed ? " removed" : "", escaped(words("cause")),
          100 * (lost ? lost->number().value_or(0) : 0), escaped(words("text")));
      return true;
    });
  }

  void long_contexts() {
    if (s_.long_before.empty() && s_.long_after.empty()) return;
    section("Long contexts",
            "One request at a time, each prompt twice. Tokens a second are those of one stream; KV hits are "
            "the prompt tokens that the cache had the second time. The case study: 124.6, 62.1, 28.9 tok/s and "
            "98.2, 73.5, 51.3 % at 4K, 16K, 32K.");
    out_ +=
        "<div class=\"scroll\"><table><thead><tr><th>context</th><th>tok/s before</th><th>after</th><th>first "
        "token, second time, ms before</th>"
        "<th>after</th><th>KV hits before</th><th>after</th></tr></thead><tbody>\n";
    for (size_t i = 0; i < std::max(s_.long_before.size(), s_.long_after.size()); ++i) {
      const LongContext none{0, NAN, NAN, NAN};
      const LongContext& b = i < s_.long_before.size() ? s_.long_before[i] : none;
      const LongContext& a = i < s_.long_after.size() ? s_.long_after[i] : none;
      out_ += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
          std::max(a.tokens, b.tokens), number(b.tok_s, 1), number(a.tok_s, 1), number(b.first_token_ms, 0),
          number(a.first_token_ms, 0), number(100 * b.hit_share, 1), number(100 * a.hit_share, 1));
    }
    out_ += "</tbody></table></div>\n";
  }

  void commands() {
    section("To run it again",
            "The server of each step; sluice.yaml beside this page has the last one. Raw samples are in "
            "samples.jsonl, the figures in result.json.");
    for (const StepResult* step : measured_)
      out_ += fmt::format("<h3>{}</h3><pre>{}</pre>\n", label_of(*step),
                          escaped(serve_command(step->chosen().run)));
    if (!facts_.load_command.empty())
      out_ += fmt::format("<h3>The load</h3><pre>{}</pre>\n", escaped(facts_.load_command));
  }

  const ReportFacts& facts_;
  const Session& s_;
  std::vector<const StepResult*> measured_;
  std::string out_;
};

}  // namespace

std::string page(const ReportFacts& facts, const Session& session) { return Page(facts, session).make(); }

}  // namespace sluice::tune
