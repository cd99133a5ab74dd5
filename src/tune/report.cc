#include "tune/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/json_fields.h"

namespace sluice::tune {
namespace {

void write_estimate(JsonWriter& out, const char* name, const Estimate& e) {
  out.key(name).begin_object();
  write_number(out, "mean", e.mean), write_number(out, "low", e.low), write_number(out, "high", e.high);
  out.key("samples").integer(e.samples).end_object();
}

void write_ranks(JsonWriter& out, const char* name, const std::array<double, 3>& values) {
  out.key(name).begin_object();
  write_number(out, "p50", values[0]), write_number(out, "p95", values[1]), write_number(out, "p99", values[2]);
  out.end_object();
}

void write_list(JsonWriter& out, const char* name, const std::vector<double>& values) {
  out.key(name).begin_array();
  for (const double v : values)
    if (std::isfinite(v))
      out.number(v);
    else
      out.null();
  out.end_array();
}

void write_strings(JsonWriter& out, const char* name, const std::vector<std::string>& values) {
  out.key(name).begin_array();
  for (const std::string& v : values) out.string(v);
  out.end_array();
}

void write_tried(JsonWriter& out, const Tried& t) {
  const Figures& f = t.figures;
  write_number(out, "qps", f.qps.mean), write_number(out, "output_tok_s", f.tok_s.mean);
  write_number(out, "p95_ms", f.p95_ms.mean);
  out.key("p95_at_least").boolean(f.p95_at_least);
  write_estimate(out, "qps_interval", f.qps), write_estimate(out, "output_tok_s_interval", f.tok_s);
  write_estimate(out, "p95_ms_interval", f.p95_ms);
  write_ranks(out, "e2e_ms", f.e2e_ms), write_ranks(out, "ttft_ms", f.first_token_ms);
  write_ranks(out, "itl_ms", t.run.between_tokens_ms);
  out.key("completed").integer(f.completed).key("failed").integer(f.failed).key("open").integer(f.open);
  write_number(out, "warm_up_s", f.warm_up_s), write_number(out, "measured_s", f.measured_s);
  out.key("windows").begin_array();
  for (const Window& w : f.windows) out.begin_array().number(w.from_s).number(w.to_s).end_array();
  out.end_array();
  write_list(out, "qps_samples", f.qps_samples), write_list(out, "output_tok_s_samples", f.tok_s_samples);
  write_list(out, "p95_ms_samples", f.p95_samples);
  write_number(out, "one_sequence_step_share", share_of_one(t.run));
  out.key("step_sequences").begin_array();
  for (const BatchBar& b : t.run.batches) {
    out.begin_object();
    write_number(out, "upto", b.upto > 0 ? b.upto : NAN), write_number(out, "steps", b.steps);
    out.end_object();
  }
  out.end_array();
  write_number(out, "prefix_hit_share",
               t.run.prefix_looked_up > 0 ? t.run.prefix_found / t.run.prefix_looked_up : NAN);
  write_number(out, "ready_s", t.run.ready_s);
  write_estimate(out, "qps_gain", t.verdict.qps_gain),
      write_estimate(out, "output_tok_s_gain", t.verdict.tok_s_gain);
  write_number(out, "p95_gain", t.verdict.p95_gain);
  out.key("model").string(t.run.configuration.model).key("settings").begin_object();
  for (const Setting& s : t.run.configuration.settings) out.key(s.key).string(s.value);
  out.end_object().key("command").string(serve_command(t.run));
  if (!t.run.failure.empty()) out.key("failure").string(t.run.failure);
  write_raw(out, "diagnosis", t.run.diagnosis), write_raw(out, "attribution", t.run.attribution);
}

void write_step(JsonWriter& out, const StepResult& step, const std::vector<Slo>& slo) {
  out.begin_object().key("name").string(step.name).key("title").string(step.title);
  out.key("measured").boolean(step.measured).key("kept").boolean(step.kept).key("reason").string(step.reason);
  write_strings(out, "causes_before", step.causes_before);
  out.key("named_before").string(step.named_before);
  if (step.measured) {
    out.key("variant").string(step.chosen().name);
    write_tried(out, step.chosen());
    if (!slo.empty()) write_number(out, "slo_excess", excess(slo, step.chosen().run, step.chosen().figures));
    out.key("others").begin_array();
    for (size_t i = 0; i < step.tried.size(); ++i) {
      if (i == step.best) continue;
      out.begin_object()
          .key("variant")
          .string(step.tried[i].name)
          .key("reason")
          .string(step.tried[i].verdict.reason);
      write_tried(out, step.tried[i]);
      out.end_object();
    }
    out.end_array();
  } else {
    for (const char* name : {"qps", "output_tok_s", "p95_ms"}) out.key(name).null();
  }
  out.end_object();
}

void write_long(JsonWriter& out, const char* name, const std::vector<LongContext>& rows) {
  out.key(name).begin_array();
  for (const LongContext& l : rows) {
    out.begin_object().key("tokens").integer(l.tokens);
    write_number(out, "tok_s", l.tok_s), write_number(out, "first_token_ms", l.first_token_ms);
    write_number(out, "kv_hit_share", l.hit_share);
    out.end_object();
  }
  out.end_array();
}

std::string cell(double value, const char* unit_less) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(unit_less), value) : "-";
}

// Half of an interval's width, of its mean.
std::string width(const Estimate& e) {
  const double share = (e.high - e.low) / 2 / e.mean;
  return std::isfinite(share) ? fmt::format("±{:.0f}%", 100 * share) : "";
}

std::string row(const StepResult& step, const Figures& start) {
  if (!step.measured) return fmt::format("{:11} {:>7}  {}\n", step.name, "-", step.reason);
  const Figures& f = step.chosen().figures;
  return fmt::format("{:11} {:>7} {:>8} {:>5} {:>9} {:>5} {:>2}{:>9} {:>8} {:>6}  {}\n", step.name,
                     step.kept ? "kept" : "dropped", cell(f.qps.mean, "{:.2f}"), width(f.qps),
                     cell(f.tok_s.mean, "{:.0f}"), width(f.tok_s), f.p95_at_least ? ">=" : "",
                     cell(f.p95_ms.mean, "{:.0f}"), change(f.qps.mean / start.qps.mean), f.failed, step.reason);
}

std::string long_table(const Session& s) {
  if (s.long_before.empty() && s.long_after.empty()) return {};
  std::string out = fmt::format("\n{:>9} {:>14} {:>12} {:>14} {:>12}   case study: tok/s, KV hits\n", "context",
                                "tok/s before", "hits before", "tok/s after", "hits after");
  const struct {
    int tokens;
    const char* said;
  } study[] = {{4096, "124.6, 98.2 %"}, {16384, "62.1, 73.5 %"}, {32768, "28.9, 51.3 %"}};
  const size_t rows = std::max(s.long_before.size(), s.long_after.size());
  for (size_t i = 0; i < rows; ++i) {
    const LongContext* b = i < s.long_before.size() ? &s.long_before[i] : nullptr;
    const LongContext* a = i < s.long_after.size() ? &s.long_after[i] : nullptr;
    const int tokens = a ? a->tokens : b->tokens;
    std::string said;
    for (const auto& row : study)
      if (row.tokens == tokens) said = row.said;
    const auto rate = [](const LongContext* l) { return l ? fmt::format("{:.1f}", l->tok_s) : "-"; };
    const auto hits = [](const LongContext* l) {
      return l ? fmt::format("{:.1f} %", 100 * l->hit_share) : "-";
    };
    out += fmt::format("{:>9} {:>14} {:>12} {:>14} {:>12}   {}\n", tokens, rate(b), hits(b), rate(a), hits(a),
                       said);
  }
  return out;
}

// A line for each order that was measured in this folder; nothing where there is one.
std::string orders_table(const std::vector<OrderedGains>& orders) {
  if (orders.size() < 2) return {};
  std::string out =
      "\nBy the order of the steps, tokens/s after each against before it (in brackets: not kept):\n";
  for (const OrderedGains& o : orders) {
    out += fmt::format("{:>9} in all: ", change(o.total));
    for (size_t i = 0; i < o.gains.size(); ++i) {
      const OrderedGains::Gain& g = o.gains[i];
      const std::string said = g.step + " " + change(g.ratio);
      out += (i ? ", " : "") + (g.kept ? said : "(" + said + ")");
    }
    out += "\n";
  }
  return out;
}

void write_orders(JsonWriter& out, const std::vector<OrderedGains>& orders) {
  out.key("orders").begin_array();
  for (const OrderedGains& o : orders) {
    out.begin_object();
    write_strings(out, "order", o.order);
    write_number(out, "output_tok_s_ratio", o.total);
    out.key("gains").begin_array();
    for (const OrderedGains::Gain& g : o.gains) {
      out.begin_object().key("step").string(g.step).key("kept").boolean(g.kept);
      write_number(out, "output_tok_s_ratio", g.ratio);
      out.end_object();
    }
    out.end_array().end_object();
  }
  out.end_array();
}

}  // namespace

std::string change(double ratio) {
  if (!std::isfinite(ratio)) return "-";
  if (ratio >= 10) return fmt::format("x{:.{}f}", ratio, ratio < 100 ? 1 : 0);
  return fmt::format("{:+.1f} %", 100 * (ratio - 1));
}

std::string serve_command(const Run& run) {
  std::vector<std::string> words = {"sluice", "serve"};
  for (std::string& word : serve_words(run.configuration)) words.push_back(std::move(word));
  return shell_line(words);
}

std::string missed_slo(const ReportFacts& facts, const Session& session) {
  if (facts.slo.empty() || !session.failure.empty()) return {};
  const Tried& last = session.final();
  if (excess(facts.slo, last.run, last.figures) <= 1) return {};
  std::string came_to;
  for (const Slo& s : facts.slo)
    came_to += fmt::format("{}{} {:.0f} ms", came_to.empty() ? "" : ", ", s.metric,
                           measured(s, last.run, last.figures));
  return fmt::format("no configuration kept {} under this load; the nearest came to {}", describe(facts.slo),
                     came_to);
}

std::string advice(const Session& s) {
  std::vector<std::string> kept, left, untold;
  for (const StepResult& step : s.steps) {
    if (step.measured && step.chosen().run.failure.empty() && !is_told(step.chosen().figures))
      untold.push_back(step.name);
    if (&step == &s.steps.front() || (step.name == kSearchName && !step.kept)) continue;
    const auto is_of_it = [&](const std::string& what) { return what.starts_with(step.name); };
    if (step.kept) kept.push_back(step.name);
    if (!step.measured && std::any_of(s.left_out.begin(), s.left_out.end(), is_of_it))
      left.push_back(step.name);
  }
  std::string out = kept.empty() ? "no step was measured to be better than the start"
                                 : fmt::format("sluice.yaml has the start's settings with those of {}",
                                               fmt::join(kept, ", "));
  if (!untold.empty())
    out += fmt::format("; too few requests ended to judge {}: give a longer --budget or a lighter load",
                       fmt::join(untold, ", "));
  if (!left.empty())
    out += fmt::format("; not tried, and in sluice.yaml as at the start: {}: run the same command again first",
                       fmt::join(left, ", "));
  if (kept.empty() && untold.empty() && left.empty()) out += ": serve with the defaults";
  return out;
}

std::string table(const ReportFacts& facts, const Session& s) {
  const Figures &first = s.start().figures, &last = s.final().figures;
  std::string out = fmt::format("{} on {}; {}\n\n", facts.model, facts.device, facts.load);
  out += fmt::format("{:11} {:>7} {:>8} {:>5} {:>9} {:>5} {:>11} {:>8} {:>6}  {}\n", "step", "", "req/s", "",
                     "tok/s", "", "p95 ms", "of start", "failed", "why");
  for (const StepResult& step : s.steps) out += row(step, first);
  for (const StepResult& step : s.steps)
    if (step.measured && !step.named_before.empty())
      out += fmt::format("\nbefore {}, the doctor named {}", step.name, step.named_before);
  out += fmt::format(
      "\n\nrequests/s {:.2f} -> {:.2f} ({}); tokens/s {:.0f} -> {:.0f} ({}); p95 {}{:.0f} -> {}{:.0f} ms "
      "({})\n",
      first.qps.mean, last.qps.mean, change(last.qps.mean / first.qps.mean), first.tok_s.mean, last.tok_s.mean,
      change(last.tok_s.mean / first.tok_s.mean), first.p95_at_least ? ">=" : "", first.p95_ms.mean,
      last.p95_at_least ? ">=" : "", last.p95_ms.mean, change(last.p95_ms.mean / first.p95_ms.mean));
  out += orders_table(facts.orders) + long_table(s);
  if (!facts.accuracy.empty()) out += "\n4-bit weights: " + facts.accuracy + "\n";
  if (!s.left_out.empty())
    out +=
        fmt::format("\nleft out ({:.0f} of {:.0f} s spent{}): {}\n", s.spent_s, facts.budget_s,
                    s.interrupted ? ", interrupted; run it again to go on" : "", fmt::join(s.left_out, ", "));
  return out;
}

std::string result_json(const ReportFacts& facts, const Session& s) {
  std::string json;
  JsonWriter out(json);
  out.begin_object().key("sluice_tune").integer(1);
  out.key("model").string(facts.model).key("device").string(facts.device).key("load").string(facts.load);
  out.key("date").string(facts.date).key("command").string(facts.command);
  out.key("load_command").string(facts.load_command).key("slo").string(describe(facts.slo));
  write_strings(out, "order", facts.order);
  write_number(out, "budget_s", facts.budget_s), write_number(out, "spent_s", s.spent_s);
  out.key("interrupted").boolean(s.interrupted);
  write_strings(out, "left_out", s.left_out);
  out.key("steps").begin_array();
  for (const StepResult& step : s.steps) write_step(out, step, facts.slo);
  out.end_array().key("final").begin_object();
  const Figures &first = s.start().figures, &last = s.final().figures;
  out.key("step").string(s.steps[s.final_step].name).key("command").string(serve_command(s.final().run));
  write_number(out, "qps_gain_percent", 100 * (last.qps.mean / first.qps.mean - 1));
  write_number(out, "output_tok_s_gain_percent", 100 * (last.tok_s.mean / first.tok_s.mean - 1));
  write_number(out, "p95_gain_percent", 100 * (last.p95_ms.mean / first.p95_ms.mean - 1));
  out.key("slo_missed").string(missed_slo(facts, s)).end_object();
  out.key("accuracy").string(facts.accuracy);
  write_orders(out, facts.orders);
  write_long(out, "long_contexts_before", s.long_before), write_long(out, "long_contexts_after", s.long_after);
  out.end_object();
  return json + "\n";
}

}  // namespace sluice::tune
