#include "tune/slo.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

namespace sluice::tune {
namespace {

constexpr std::string_view kGroups[] = {"", "ttft_", "itl_"};
constexpr std::string_view kRanks[] = {"p50_ms", "p95_ms", "p99_ms"};

struct Place {
  size_t group = 0, rank = 0;
  bool known = false;
};
Place place_of(std::string_view metric) {
  for (size_t g = 0; g < std::size(kGroups); ++g)
    for (size_t r = 0; r < std::size(kRanks); ++r)
      if (metric.starts_with(kGroups[g]) && metric.substr(kGroups[g].size()) == kRanks[r]) return {g, r, true};
  return {};
}

Result<Slo> parse_one(std::string_view text) {
  const size_t less = text.find('<');
  Slo slo;
  slo.metric = text.substr(0, less);
  const std::string_view number = less == text.npos ? "" : text.substr(less + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), slo.limit);
  if (!place_of(slo.metric).known || number.empty() || error != std::errc() ||
      end != number.data() + number.size() || !(slo.limit > 0))
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format(
            "--slo: expected METRIC<MS with p50_ms, p95_ms or p99_ms, of the first token (ttft_p95_ms) or "
            "between tokens (itl_p99_ms), got '{}'",
            text)};
  return slo;
}

}  // namespace

Result<std::vector<Slo>> parse_slo(const std::string& text) {
  std::vector<Slo> out;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    Result<Slo> one = parse_one(std::string_view(text).substr(at, comma - at));
    if (!one) return std::move(one).error();
    out.push_back(std::move(*one));
    at = comma + 1;
  }
  return out;
}

std::string describe(const std::vector<Slo>& slo) {
  std::string text;
  for (const Slo& s : slo) text += fmt::format("{}{}<{:g}", text.empty() ? "" : ",", s.metric, s.limit);
  return text;
}

double measured(const Slo& slo, const Run& run, const Figures& figures) {
  const Place p = place_of(slo.metric);
  return p.group == 0   ? figures.e2e_ms[p.rank]
         : p.group == 1 ? figures.first_token_ms[p.rank]
                        : run.between_tokens_ms[p.rank];
}

double excess(const std::vector<Slo>& slo, const Run& run, const Figures& figures) {
  if (slo.empty()) return 0;
  double worst = 0;
  for (const Slo& s : slo) {
    const double value = measured(s, run, figures);
    if (figures.completed == 0 || figures.failed > 0 || !std::isfinite(value))
      return std::numeric_limits<double>::infinity();
    worst = std::max(worst, value / s.limit);
  }
  return worst;
}

}  // namespace sluice::tune
