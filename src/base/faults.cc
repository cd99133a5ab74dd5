#include "base/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <memory>

#include "base/clock.h"
#include "base/meter.h"

namespace sluice {
namespace {

constexpr std::array<std::string_view, size_t(kFaults)> kNames = {
    "nan_logits",   "flat_logits",  "weak_logits", "control_ids",     "id_jumps",         "repetition",
    "preempt",      "step_failure", "slow_step",   "graph_miss",      "cpu_stall",        "off_cpu",
    "engine_alloc", "evict_cache",  "clock_jump",  "device_error",    "engine_exception", "alloc_failure",
    "short_write",  "short_read",   "eagain",      "kill_connection", "disk_full",        "slow_disk"};

// Where `amount` names a place, the last there is.
std::optional<int64_t> last_place(Fault fault) {
  switch (fault) {
    case Fault::engine_exception:
      return 1;
    case Fault::eagain:
      return 2;
    case Fault::alloc_failure:
      return 5;
    case Fault::kill_connection:
      return 8;
    default:
      return {};
  }
}

bool knows_requests(Fault fault) { return fault <= Fault::graph_miss; }

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// What comes before `mark`, which is taken off `text` with it.
std::string_view next_part(std::string_view& text, char mark) {
  const size_t at = std::min(text.find(mark), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return trimmed(part);
}

Error wrong(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

template <typename T>
bool read_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Status set(FaultRule& rule, std::string_view key, std::string_view value) {
  const auto number = [&](int64_t& slot, int64_t least) -> Status {
    if (read_number(value, slot) && slot >= least) return {};
    return wrong(fmt::format("{}:{}: expected a number from {} on, got \"{}\"", fault_name(rule.fault), key,
                             least, value));
  };
  if (key == "from") return number(rule.from, 1);
  if (key == "every") return number(rule.every, 1);
  if (key == "count") return number(rule.count, 1);
  if (const auto last = last_place(rule.fault); key == "amount" && last) {
    if (read_number(value, rule.amount) && rule.amount >= 0 && rule.amount <= *last) return {};
    return wrong(fmt::format("{}:amount: expected a place from 0 to {}, got \"{}\"", fault_name(rule.fault),
                             *last, value));
  }
  if (key == "amount") return number(rule.amount, std::numeric_limits<int32_t>::min());
  if (key == "rate") {
    if (read_number(value, rule.rate) && rule.rate > 0 && rule.rate <= 1) return {};
    return wrong(
        fmt::format("{}:rate: expected above 0 and at most 1, got \"{}\"", fault_name(rule.fault), value));
  }
  if (key == "request") {
    if (!knows_requests(rule.fault))
      return wrong(fmt::format("{}: knows of no request", fault_name(rule.fault)));
    rule.request = value;
    return {};
  }
  return wrong(fmt::format("{}: unknown key \"{}\"; there are from, every, count, rate, amount, request",
                           fault_name(rule.fault), key));
}

Result<FaultRule> parse_rule(std::string_view text) {
  const std::string_view name = next_part(text, ':');
  FaultRule rule;
  size_t i = 0;
  while (i < kNames.size() && kNames[i] != name) ++i;
  if (i == kNames.size())
    return wrong(fmt::format("unknown fault \"{}\"; there are {}", name, fmt::join(kNames, ", ")));
  rule.fault = Fault(i);
  while (!text.empty()) {
    std::string_view pair = next_part(text, ',');
    const std::string_view key = next_part(pair, '=');
    if (Status ok = set(rule, key, trimmed(pair)); !ok) return std::move(ok).error();
  }
  return rule;
}

// Sebastiano Vigna's splitmix64.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

struct ArmedRule {
  FaultRule rule;
  uint64_t salt = 0;
  std::atomic<int64_t> struck{0}, met{0};
  Counter* counter = nullptr;
};

struct Armed {
  std::deque<ArmedRule> rules;
  std::array<std::atomic<int64_t>, size_t(kFaults)> meetings{};
};

// What was armed once stays, since a thread may just look at it.
std::deque<Armed>& all_armed() {
  static auto* all = new std::deque<Armed>;
  return *all;
}
std::atomic<Armed*> current{nullptr};

bool strikes(ArmedRule& armed, int64_t n) {
  const FaultRule& r = armed.rule;
  if (n < r.from || (n - r.from) % r.every != 0) return false;
  if (r.rate < 1 && double(mixed(armed.salt + uint64_t(n)) >> 11) * 0x1p-53 >= r.rate) return false;
  if (armed.struck.fetch_add(1, std::memory_order_relaxed) >= r.count) return false;
  armed.counter->add();
  return true;
}

}  // namespace

std::string_view fault_name(Fault fault) { return kNames[size_t(fault)]; }

Result<FaultPlan> parse_faults(std::string_view text) {
  FaultPlan plan;
  while (!text.empty()) {
    const std::string_view part = next_part(text, ';');
    if (part.empty()) continue;
    if (part.starts_with("seed=")) {
      if (!read_number(part.substr(5), plan.seed)) return wrong(fmt::format("\"{}\": no number", part));
      continue;
    }
    auto rule = parse_rule(part);
    if (!rule) return std::move(rule).error();
    plan.rules.push_back(std::move(*rule));
  }
  if (plan.rules.empty()) return wrong("no fault is named");
  return plan;
}

namespace faults {

void arm(FaultPlan plan) {
  Armed& armed = all_armed().emplace_back();
  for (FaultRule& rule : plan.rules) {
    ArmedRule& to = armed.rules.emplace_back();
    to.salt = mixed(plan.seed + 0x100 * armed.rules.size());
    to.counter =
        &meter::counter("sluice_faults_injected_total", "Faults that SLUICE_FAULTS has planted; tests only.",
                        fmt::format("fault=\"{}\"", fault_name(rule.fault)));
    to.rule = std::move(rule);
  }
  current.store(&armed);
  detail::armed.store(true);
}

void disarm() { detail::armed.store(false); }

std::optional<int64_t> met(Fault fault, std::string_view request, int64_t nth_token) {
  for (ArmedRule& armed : current.load()->rules) {
    const FaultRule& r = armed.rule;
    if (r.fault == fault && !r.request.empty() && request.starts_with(r.request) && strikes(armed, nth_token))
      return r.amount;
  }
  return {};
}

std::optional<int64_t> met(Fault fault, int64_t n) {
  for (ArmedRule& armed : current.load()->rules)
    if (armed.rule.fault == fault && armed.rule.request.empty() && strikes(armed, n)) return armed.rule.amount;
  return {};
}

std::optional<int64_t> met(Fault fault) {
  return met(fault, 1 + current.load()->meetings[size_t(fault)].fetch_add(1, std::memory_order_relaxed));
}

bool met_at(Fault fault, std::initializer_list<int64_t> names, std::optional<int64_t> n) {
  for (ArmedRule& armed : current.load()->rules) {
    if (armed.rule.fault != fault || std::find(names.begin(), names.end(), armed.rule.amount) == names.end())
      continue;
    if (strikes(armed, n ? *n : 1 + armed.met.fetch_add(1, std::memory_order_relaxed))) return true;
  }
  return false;
}

void burn_ms(int64_t ms) {
  for (const TimeNs until = thread_cpu_ns() + ms * 1'000'000; thread_cpu_ns() < until;) {
  }
}

}  // namespace faults
}  // namespace sluice
