#include "cli/load_summary.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cli {

Spread spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    const double rank = q * double(values.size() - 1);
    const size_t below = size_t(rank);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (rank - double(below)) * (values[above] - values[below]);
  };
  double sum = 0;
  for (const double v : values) sum += v;
  return {at(0.5), at(0.95), at(0.99), sum / double(values.size())};
}

void write_spread(JsonWriter& out, const char* name, const Spread& d) {
  out.key(name).begin_object();
  write_number(out, "p50", d.p50), write_number(out, "p95", d.p95);
  write_number(out, "p99", d.p99), write_number(out, "mean", d.mean);
  out.end_object();
}

void write_members(JsonWriter& out, const LoadSummary& s) {
  write_number(out, "qps", s.qps());
  write_number(out, "output_tok_s", s.output_tok_s());
  write_spread(out, "ttft_ms", s.ttft), write_spread(out, "itl_ms", s.itl), write_spread(out, "e2e_ms", s.e2e);
  out.key("failed").integer(int64_t(s.failed));
  out.key("completed").integer(int64_t(s.completed));
  out.key("output_tokens").integer(s.tokens);
  out.key("wall_s").number(s.wall_s);
  if (std::isfinite(s.sent_late.p99)) write_spread(out, "sent_late_ms", s.sent_late);
  if (!s.first_error.empty()) out.key("first_error").string(s.first_error);
}

std::string describe_row(const char* name, const Spread& d) {
  if (!std::isfinite(d.mean)) return {};  // there is nothing of the kind
  return fmt::format("{:24}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}\n", name, d.p50, d.p95, d.p99, d.mean);
}

std::string describe(const LoadSummary& s) {
  std::string out =
      fmt::format("{:.2f} requests/s   {:.1f} output tokens/s   {} completed   {} failed   {:.1f} s\n\n",
                  s.qps(), s.output_tok_s(), s.completed, s.failed, s.wall_s);
  out += fmt::format("{:24}{:>10}{:>10}{:>10}{:>10}\n", "ms", "p50", "p95", "p99", "mean");
  out += describe_row("time to first token", s.ttft) + describe_row("between tokens", s.itl) +
         describe_row("end to end", s.e2e);
  constexpr double kLateMs = 10;
  if (s.sent_late.p99 > kLateMs)
    out +=
        fmt::format("\nthis client could not keep the rate: 1 % of requests were sent {:.0f} ms late or more\n",
                    s.sent_late.p99);
  if (!s.first_error.empty()) out += fmt::format("\nfirst failure: {}\n", s.first_error);
  return out;
}

}  // namespace sluice::cli
