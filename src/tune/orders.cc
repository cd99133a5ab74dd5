#include "tune/orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "server/json.h"
#include "server/json_fields.h"

namespace sluice::tune {
namespace {

std::string to_line(const OrderedGains& g) {
  std::string line;
  JsonWriter out(line);
  out.begin_object().key("order").begin_array();
  for (const std::string& name : g.order) out.string(name);
  out.end_array().key("gains").begin_array();
  for (const OrderedGains::Gain& gain : g.gains) {
    out.begin_object().key("step").string(gain.step).key("kept").boolean(gain.kept);
    write_number(out, "ratio", gain.ratio);
    out.end_object();
  }
  out.end_array();
  write_number(out, "total", g.total);
  out.end_object();
  return line;
}

double ratio_in(const JsonView& object, const char* name) {
  const auto value = object.find(name);
  return value ? value->number().value_or(NAN) : NAN;
}

bool from_line(const std::string& line, OrderedGains& g) {
  const auto document = JsonDocument::parse(line);
  if (!document || !document->root().is_object()) return false;
  const auto order = document->root().find("order"), gains = document->root().find("gains");
  if (!order || !order->is_array() || !gains || !gains->is_array()) return false;
  for (size_t i = 0; i < order->size(); ++i) g.order.emplace_back(order->at(i).string().value_or(""));
  for (size_t i = 0; i < gains->size(); ++i) {
    const JsonView gain = gains->at(i);
    const auto step = gain.find("step"), kept = gain.find("kept");
    if (!step || !kept) return false;
    g.gains.push_back(
        {std::string(step->string().value_or("")), kept->boolean().value_or(false), ratio_in(gain, "ratio")});
  }
  g.total = ratio_in(document->root(), "total");
  return true;
}

}  // namespace

OrderedGains gains_of(const std::vector<std::string>& order, const Session& session) {
  OrderedGains g{order, {}, session.final().figures.tok_s.mean / session.start().figures.tok_s.mean};
  for (size_t i = 1; i < session.steps.size(); ++i) {
    const StepResult& step = session.steps[i];
    if (step.measured) g.gains.push_back({step.name, step.kept, step.chosen().verdict.tok_s_gain.mean});
  }
  return g;
}

Result<std::vector<OrderedGains>> remember_gains(const std::string& path, const OrderedGains& now) {
  std::vector<OrderedGains> all;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line);)
    if (OrderedGains g; from_line(line, g)) all.push_back(std::move(g));
  const auto same =
      std::find_if(all.begin(), all.end(), [&](const OrderedGains& g) { return g.order == now.order; });
  if (same != all.end())
    *same = now;
  else
    all.push_back(now);
  std::ofstream out(path, std::ios::binary);
  for (const OrderedGains& g : all) out << to_line(g) << '\n';
  out.flush();
  if (!out) return Error{ErrorCode::kIo, path + ": cannot be written"};
  return all;
}

}  // namespace sluice::tune
