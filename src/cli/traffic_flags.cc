#include "cli/traffic_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include "server/json.h"

namespace sluice::cli {
namespace {

constexpr int kMostTokens = 1 << 20, kMostConcurrency = 1 << 14;
constexpr double kMostRate = 1e6, kMostSeconds = 1e9;

Error expected(const std::string& what, const std::string& text) {
  return {ErrorCode::kInvalidArgument, fmt::format("expected {}, got '{}'", what, text)};
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(trimmed(text.substr(at, end - at)));
    at = end + 1;
  }
  return parts;
}

template <typename Number>
std::optional<Number> number(std::string_view text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) return {};
  return value;
}

// The numbers after "name:"; none where one of them is no number or their count is another.
std::optional<std::vector<double>> arguments(std::string_view text, std::string_view name, size_t least,
                                             size_t most) {
  if (!text.starts_with(name) || text.size() <= name.size() || text[name.size()] != ':') return {};
  std::vector<double> values;
  for (const std::string_view part : split(text.substr(name.size() + 1), ',')) {
    const auto value = number<double>(part, 0, kMostSeconds);
    if (!value) return {};
    values.push_back(*value);
  }
  if (values.size() < least || values.size() > most) return {};
  return values;
}

std::optional<Lane> lane_of(std::string_view name) {
  for (int lane = 0; lane < kLanes; ++lane)
    if (name == lane_name(Lane(lane))) return Lane(lane);
  return {};
}

// One request of a file, its members as texts; empty: absent.
struct TraceLine {
  std::string timestamp, input, output, lane, tenant, shared_prefix;
};

Result<TracedRequest> request_of(const TraceLine& line) {
  TracedRequest r;
  const auto at = number<double>(line.timestamp, -kMostSeconds, kMostSeconds);
  if (!at) return expected("a timestamp in seconds", line.timestamp);
  r.at = TimeNs(std::llround(*at * 1e9));
  const auto input = number<int>(line.input, 1, kMostTokens), output = number<int>(line.output, 1, kMostTokens);
  if (!input) return expected(fmt::format("input tokens from 1 to {}", kMostTokens), line.input);
  if (!output) return expected(fmt::format("output tokens from 1 to {}", kMostTokens), line.output);
  r.input = *input, r.output = *output;
  if (!line.lane.empty()) {
    const auto lane = lane_of(line.lane);
    if (!lane) return expected("lane interactive, standard or batch", line.lane);
    r.lane = *lane;
  }
  if (!line.tenant.empty()) {
    const auto tenant = number<uint32_t>(line.tenant, 0, UINT32_MAX);
    if (!tenant) return expected("a tenant's number", line.tenant);
    r.tenant = *tenant;
  }
  if (!line.shared_prefix.empty()) {
    const auto prefix = number<int>(line.shared_prefix, 0, r.input);
    if (!prefix)
      return expected(fmt::format("a shared prefix from 0 to the input's {}", r.input), line.shared_prefix);
    r.shared_prefix = *prefix;
  }
  return r;
}

Result<TraceLine> json_line(std::string_view text) {
  const Result<JsonDocument> json = JsonDocument::parse(text);
  if (!json) return json.error();
  if (!json->root().is_object()) return Error{ErrorCode::kCorrupt, "expected an object"};
  TraceLine line;
  const auto take = [&](const char* name, std::string& out) {
    if (const auto member = json->root().find(name); member && !member->is_null())
      out = member->string() ? std::string(*member->string()) : member->text();
  };
  take("timestamp", line.timestamp), take("input", line.input), take("output", line.output);
  take("lane", line.lane), take("tenant", line.tenant), take("shared_prefix", line.shared_prefix);
  return line;
}

Result<TraceLine> csv_line(std::string_view text) {
  const auto parts = split(text, ',');
  if (parts.size() < 3 || parts.size() > 6)
    return expected("timestamp,input,output[,lane[,tenant[,shared_prefix]]]", std::string(text.substr(0, 80)));
  TraceLine line;
  std::string* members[] = {&line.timestamp, &line.input,  &line.output,
                            &line.lane,      &line.tenant, &line.shared_prefix};
  for (size_t i = 0; i < parts.size(); ++i) *members[i] = parts[i];
  return line;
}

}  // namespace

Result<LengthLaw> parse_length(const std::string& text) {
  const auto wrong = [&] {
    return expected("tokens: 512, 512±128, uniform:LOW,HIGH or lognormal:MEDIAN,SIGMA[,MOST]", text);
  };
  LengthLaw law;
  if (const auto log = arguments(text, "lognormal", 2, 3)) {
    law = {LengthLaw::Kind::lognormal, 1, log->size() == 3 ? int((*log)[2]) : kMostTokens, (*log)[0],
           (*log)[1]};
    if (law.median < 1 || law.median > law.high || law.sigma > 10 || law.high > kMostTokens) return wrong();
    return law;
  }
  if (const auto range = arguments(text, "uniform", 2, 2)) {
    law = {LengthLaw::Kind::uniform, int((*range)[0]), int((*range)[1])};
  } else {
    size_t sign = text.find("±"), length = 2;
    if (sign == std::string::npos) sign = text.find("+-");
    const auto middle = number<int>(trimmed(std::string_view(text).substr(0, sign)), 1, kMostTokens);
    if (!middle) return wrong();
    if (sign == std::string::npos) return LengthLaw{LengthLaw::Kind::fixed, *middle, *middle};
    const auto width = number<int>(trimmed(std::string_view(text).substr(sign + length)), 0, kMostTokens);
    if (!width) return wrong();
    law = {LengthLaw::Kind::uniform, *middle - *width, *middle + *width};
  }
  if (law.low < 1 || law.low > law.high || law.high > kMostTokens) return wrong();
  return law;
}

Result<Arrivals> parse_arrivals(const std::string& text) {
  if (const auto rate = arguments(text, "poisson", 1, 1); rate && (*rate)[0] > 0 && (*rate)[0] <= kMostRate)
    return Arrivals{.kind = Arrivals::Kind::poisson, .rate = (*rate)[0]};
  if (const auto b = arguments(text, "bursty", 4, 4);
      b && (*b)[1] > 0 && (*b)[0] <= kMostRate && (*b)[1] <= kMostRate && (*b)[2] > 0 && (*b)[3] > 0)
    return Arrivals{Arrivals::Kind::bursty, (*b)[0], (*b)[1], (*b)[2], (*b)[3]};
  if (const auto n = arguments(text, "closed", 1, 1);
      n && (*n)[0] >= 1 && (*n)[0] <= kMostConcurrency && (*n)[0] == std::floor((*n)[0]))
    return Arrivals{.kind = Arrivals::Kind::closed, .concurrency = int((*n)[0])};
  return expected(
      "poisson:RATE, bursty:RATE,BURST_RATE,ON_S,OFF_S, closed:CONCURRENCY or file:PATH, rates above 0 (of "
      "bursty "
      "the first may be 0)",
      text);
}

Result<std::array<double, kLanes>> parse_lanes(const std::string& text) {
  std::array<double, kLanes> shares{};
  double sum = 0;
  for (const std::string_view part : split(text, ',')) {
    const size_t colon = part.find(':');
    const auto lane = lane_of(part.substr(0, colon));
    const auto share =
        colon == std::string_view::npos ? std::nullopt : number<double>(part.substr(colon + 1), 0, 1e6);
    if (!lane || !share) return expected("shares as interactive:0.2,standard:0.5,batch:0.3", text);
    shares[size_t(*lane)] = *share;
    sum += *share;
  }
  if (!(sum > 0)) return expected("a share above 0", text);
  return shares;
}

Status parse_host(const std::string& text, HostCost& host) {
  const struct {
    std::string_view name;
    TimeNs* value;
  } known[] = {{"plan", &host.plan_ns},
               {"plan_sequence", &host.plan_sequence_ns},
               {"commit", &host.commit_ns},
               {"commit_sequence", &host.commit_sequence_ns},
               {"launch", &host.launch_ns},
               {"notice", &host.notice_ns},
               {"request", &host.request_ns},
               {"answer", &host.answer_ns},
               {"answer_sequence", &host.answer_sequence_ns}};
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    const auto row = std::find_if(std::begin(known), std::end(known),
                                  [&](const auto& k) { return k.name == part.substr(0, equals); });
    const auto us =
        equals == std::string_view::npos ? std::nullopt : number<double>(part.substr(equals + 1), 0, 1e9);
    if (row == std::end(known) || !us)
      return expected(
          "NAME=MICROSECONDS,… of plan, plan_sequence, commit, commit_sequence, launch, notice, request, "
          "answer, answer_sequence",
          std::string(part));
    *row->value = TimeNs(*us * 1000);
  }
  return {};
}

Result<Trace> parse_trace(const std::string& text, const std::string& name) {
  Trace trace;
  int line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trimmed(std::string_view(text).substr(at, end - at));
    at = end + 1;
    ++line_number;
    if (line.empty() || (trace.requests.empty() && line.starts_with("timestamp"))) continue;
    Result<TraceLine> members = line.starts_with('{') ? json_line(line) : csv_line(line);
    Result<TracedRequest> request = members ? request_of(*members) : Result<TracedRequest>(members.error());
    if (!request)
      return Error{ErrorCode::kCorrupt, fmt::format("{}:{}: {}", name, line_number, request.error().message)};
    trace.requests.push_back(*request);
  }
  if (trace.requests.empty()) return Error{ErrorCode::kCorrupt, name + ": holds no request"};
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const TracedRequest& a, const TracedRequest& b) { return a.at < b.at; });
  const TimeNs first = trace.requests.front().at;
  for (TracedRequest& r : trace.requests) r.at -= first;
  return trace;
}

Result<Trace> read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) return Error{ErrorCode::kIo, path + ": cannot be read"};
  return parse_trace(text.str(), path);
}

}  // namespace sluice::cli
