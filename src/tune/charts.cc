#include "tune/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace sluice::tune {
namespace {

constexpr int kRow = 26;      // pixels
constexpr double kWide = 64;  // percent of a chart that bars may take; the rest is for words behind them

std::string text(double x_percent, double y, const std::string& anchor, std::string_view words) {
  return fmt::format(R"(<text x="{:.2f}%" y="{:.1f}" text-anchor="{}">{}</text>)", x_percent, y, anchor,
                     escaped(words));
}

std::string open_svg(int height, std::string_view name) {
  return fmt::format(R"(<svg class="chart" width="100%" height="{}" role="img" aria-label="{}">)", height,
                     escaped(name));
}

std::string labelled(const std::string& label, const std::string& svg) {
  return fmt::format(R"(<div class="row"><div class="label">{}</div><div class="figure">{}</div></div>)", label,
                     svg) +
         "\n";
}

// Places on a logarithmic axis between two powers of ten.
struct LogAxis {
  double low = 1, high = 10;

  static LogAxis of(const std::vector<double>& values) {
    double least = INFINITY, most = 0;
    for (const double v : values)
      if (std::isfinite(v) && v > 0) least = std::min(least, v), most = std::max(most, v);
    if (most == 0) return {};
    LogAxis axis{std::pow(10, std::floor(std::log10(least))), std::pow(10, std::ceil(std::log10(most)))};
    if (axis.high <= axis.low) axis.high = axis.low * 10;
    return axis;
  }
  double place(double v) const { return std::log(v / low) / std::log(high / low); }
  std::vector<double> ticks() const {
    std::vector<double> t;
    for (double v = low; v <= high * 1.001; v *= 10) t.push_back(v);
    return t;
  }
};

std::string with_unit(double value) {
  static constexpr std::pair<double, const char*> kUnits[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [factor, unit] : kUnits)
    if (value >= factor) return fmt::format("{:g}{}", std::round(10 * value / factor) / 10, unit);
  return fmt::format("{:g}", value);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string span_chart(const std::vector<Span>& spans) {
  double most = 0;
  for (const Span& s : spans)
    for (const double v : {s.from, s.to, s.high})
      if (std::isfinite(v)) most = std::max(most, v);
  std::string out;
  for (const Span& s : spans) {
    std::string svg = open_svg(kRow, s.said);
    if (most > 0 && std::isfinite(s.to)) {
      const auto at = [&](double v) { return kWide * std::clamp(v / most, 0.0, 1.0); };
      const double left = at(std::min(s.from, s.to)), right = at(std::max(s.from, s.to));
      svg += fmt::format(R"(<rect class="{}" x="{:.2f}%" y="4" width="{:.2f}%" height="16"/>)", s.style, left,
                         std::max(0.3, right - left));
      double end = right;
      if (std::isfinite(s.low) && std::isfinite(s.high) && s.high > s.low) {
        svg += fmt::format(R"(<line class="whisker" x1="{:.2f}%" x2="{:.2f}%" y1="12" y2="12"/>)", at(s.low),
                           at(s.high));
        end = std::max(end, at(s.high));
      }
      svg += text(end + 0.8, 17, "start", s.said);
    } else {
      svg += text(0, 17, "start", s.said);
    }
    out += labelled(s.label, svg + "</svg>");
  }
  return out;
}

std::string dot_chart(const std::vector<DotRow>& rows, const std::vector<std::string>& names) {
  std::vector<double> all;
  for (const DotRow& r : rows) all.insert(all.end(), r.values.begin(), r.values.end());
  const LogAxis axis = LogAxis::of(all);
  const auto at = [&](double v) { return 2 + 94 * std::clamp(axis.place(v), 0.0, 1.0); };
  std::string out, key;
  for (size_t i = 0; i < names.size(); ++i)
    key += fmt::format(R"(<span class="key dot{}">{}</span> )", i, escaped(names[i]));
  out += labelled("", key);
  for (const DotRow& r : rows) {
    std::string svg = open_svg(kRow, "");
    for (const double t : axis.ticks())
      svg += fmt::format(R"(<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="{1}"/>)", at(t), kRow);
    double least = INFINITY, most = 0;
    for (const double v : r.values)
      if (std::isfinite(v) && v > 0) least = std::min(least, v), most = std::max(most, v);
    if (most > 0)
      svg += fmt::format(R"(<line class="range" x1="{:.2f}%" x2="{:.2f}%" y1="13" y2="13"/>)", at(least),
                         at(most));
    for (size_t i = 0; i < r.values.size(); ++i)
      if (std::isfinite(r.values[i]) && r.values[i] > 0)
        svg += fmt::format(
            R"(<circle class="dot{}" cx="{:.2f}%" cy="13" r="5"><title>{}{:.1f} ms</title></circle>)", i,
            at(r.values[i]), r.at_least && i > 0 ? "at least " : "", r.values[i]);
    out += labelled(r.label, svg + "</svg>");
  }
  std::string svg = open_svg(18, "milliseconds");
  for (const double t : axis.ticks())
    svg += text(at(t), 13,
                t == axis.low           ? "start"
                : t >= axis.high * 0.99 ? "end"
                                        : "middle",
                with_unit(t) + " ms");
  return out + labelled("", svg + "</svg>");
}

std::string column_chart(const std::vector<Column>& columns) {
  constexpr int kHigh = 90;
  std::string svg = open_svg(kHigh + 34, "distribution");
  const double wide = columns.empty() ? 0 : 100.0 / double(std::max<size_t>(columns.size(), 4));
  for (size_t i = 0; i < columns.size(); ++i) {
    const double left = double(i) * wide, high = kHigh * columns[i].share;
    svg += fmt::format(R"(<rect class="kept" x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}"/>)",
                       left + wide * 0.1, kHigh + 16 - high, wide * 0.8, high);
    svg += text(left + wide / 2, kHigh + 12 - high, "middle", fmt::format("{:.0f}%", 100 * columns[i].share));
    svg += text(left + wide / 2, kHigh + 31, "middle", columns[i].label);
  }
  return svg + "</svg>\n";
}

std::string part_chart(const std::vector<PartRow>& rows) {
  // Colours by name, in the order of first appearance.
  std::map<std::string, size_t> colour;
  std::vector<std::string> order;
  const auto colour_of = [&](const std::string& name) {
    if (!colour.count(name)) colour[name] = order.size(), order.push_back(name);
    return colour[name] % 9;
  };
  std::string body;
  for (const PartRow& r : rows) {
    std::string svg = open_svg(kRow, "parts");
    double at = 0, rest = 0;
    const auto draw = [&](const std::string& name, double share) {
      svg += fmt::format(
          R"(<rect class="part{}" x="{:.2f}%" y="3" width="{:.2f}%" height="19"><title>{} {:.1f} %</title></rect>)",
          colour_of(name), 100 * at, 100 * share, escaped(name), 100 * share);
      at += share;
    };
    for (const Part& p : r.parts)
      if (p.share >= 0.01)
        draw(p.name, p.share);
      else
        rest += p.share;
    if (rest > 0.001) draw("rest", rest);
    body += labelled(r.label, svg + "</svg>");
  }
  std::string key;
  for (const std::string& name : order)
    key += fmt::format(R"(<span class="key part{}">{}</span> )", colour[name] % 9, escaped(name));
  return labelled("", key) + body;
}

std::string roofline_chart(const Roof& roof, const std::vector<RoofPoint>& points) {
  constexpr int kHigh = 320, kFoot = 36;
  std::vector<double> xs, ys = {roof.flops_s};
  for (const RoofPoint& p : points)
    if (p.bytes_s > 0 && p.flops_s > 0) xs.push_back(p.flops_s / p.bytes_s), ys.push_back(p.flops_s);
  if (xs.empty() || roof.flops_s <= 0 || roof.bytes_s <= 0) return {};
  xs.push_back(2 * roof.flops_s / roof.bytes_s);
  const LogAxis x = LogAxis::of(xs), y = LogAxis::of(ys);
  const auto px = [&](double v) { return 10 + 86 * std::clamp(x.place(v), 0.0, 1.0); };
  const auto py = [&](double v) { return 8 + (kHigh - 8) * (1 - std::clamp(y.place(v), 0.0, 1.0)); };
  std::string svg = open_svg(kHigh + kFoot, "roofline");
  for (const double t : x.ticks())
    svg += fmt::format(R"(<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="8" y2="{1}"/>)", px(t), kHigh) +
           text(px(t), kHigh + 14, "middle", with_unit(t));
  for (const double t : y.ticks())
    svg += fmt::format(R"(<line class="grid" x1="10%" x2="96%" y1="{0:.1f}" y2="{0:.1f}"/>)", py(t)) +
           text(9.2, py(t) + 4, "end", with_unit(t));
  // The slope begins where the picture does: at its left side or at its foot.
  const double knee = roof.flops_s / roof.bytes_s, from = std::max(x.low, y.low / roof.bytes_s);
  svg += fmt::format(R"(<line class="roof" x1="{:.2f}%" y1="{:.1f}" x2="{:.2f}%" y2="{:.1f}"/>)", px(from),
                     py(from * roof.bytes_s), px(knee), py(roof.flops_s));
  svg += fmt::format(R"(<line class="roof" x1="{:.2f}%" y1="{:.1f}" x2="96%" y2="{:.1f}"/>)", px(knee),
                     py(roof.flops_s), py(roof.flops_s));
  int number = 0;
  std::string key;
  for (const RoofPoint& p : points) {
    if (p.bytes_s <= 0 || p.flops_s <= 0) continue;
    const double intensity = p.flops_s / p.bytes_s;
    ++number;
    svg +=
        fmt::format(R"(<circle class="point" cx="{:.2f}%" cy="{:.1f}" r="9"/>)", px(intensity), py(p.flops_s)) +
        text(px(intensity), py(p.flops_s) + 4, "middle", fmt::format("{}", number));
    key +=
        fmt::format("<li>{}: {:.0f} operations a byte, {:.1f} % of the compute, {:.0f} % of the bandwidth</li>",
                    escaped(p.name), intensity, 100 * p.flops_s / roof.flops_s, 100 * p.bytes_s / roof.bytes_s);
  }
  svg +=
      text(53, kHigh + 31, "middle", "operations per byte read or written; up: operations a second") + "</svg>";
  return svg + "<ol class=\"points\">" + key + "</ol>\n";
}

}  // namespace sluice::tune
