// Figures of the report as inline SVG. Places are in percent and letters in pixels, so that a figure is as wide
// as there is room and its words stay readable.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::tune {

// `text` for HTML, also in an attribute.
std::string escaped(std::string_view text);

// A bar from one value to another on an axis that begins at 0, with whiskers where low < high.
struct Span {
  std::string label;  // HTML
  double from = 0, to = 0;
  double low = 0, high = 0;
  std::string said{};   // behind it, text
  std::string style{};  // a class: kept, dropped, start
};
// Rows of bars on one scale.
std::string span_chart(const std::vector<Span>& spans);

// Points on a logarithmic axis, several to a row: p50, p95, p99.
struct DotRow {
  std::string label;  // HTML
  std::vector<double> values;
  bool at_least = false;
};
std::string dot_chart(const std::vector<DotRow>& rows, const std::vector<std::string>& names);

// Bars that stand: a distribution.
struct Column {
  std::string label;  // text
  double share = 0;   // 0..1
};
std::string column_chart(const std::vector<Column>& columns);

// Parts of a whole, one row each. Parts of less than a hundredth are put together with the rest.
struct Part {
  std::string name;
  double share = 0;
};
struct PartRow {
  std::string label;  // HTML
  std::vector<Part> parts;
};
std::string part_chart(const std::vector<PartRow>& rows);

// What arithmetic a byte of memory traffic is used for, against what is achieved, both logarithmic, under the
// machine's limits.
struct RoofPoint {
  std::string name;
  double flops_s = 0, bytes_s = 0;
};
struct Roof {
  double flops_s = 0, bytes_s = 0;
};
std::string roofline_chart(const Roof& roof, const std::vector<RoofPoint>& points);

}  // namespace sluice::tune
