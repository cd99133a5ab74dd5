// `sluice doctor`: asks a running server what holds it back, and prints it for people.
#include <fmt/format.h>

#include <cmath>

#include "cli/bench_client.h"
#include "cli/commands.h"
#include "cli/json_number.h"

namespace sluice::cli {
namespace {

std::string text_of(const JsonView& object, std::string_view name) {
  const auto value = object.find(name);
  return std::string(value ? value->string().value_or("") : "");
}

// "12.3", "0.004", "4,560,000,000": as many digits as say something.
std::string short_number(double value) {
  if (value == std::round(value) && std::abs(value) < 1e6) return fmt::format("{:.0f}", value);
  if (std::abs(value) >= 1e6)
    return fmt::format("{:.2f}e{:.0f}", value / std::pow(10, std::floor(std::log10(value))),
                       std::floor(std::log10(value)));
  return fmt::format("{:.3g}", value);
}

std::string share_text(const std::optional<JsonView>& seen, std::string_view name) {
  const auto value = seen ? seen->find(name) : std::nullopt;
  const auto share = value ? value->number() : std::nullopt;
  return share ? fmt::format("{:.0f} %", 100 * *share) : "not measured";
}

void print_seen(const JsonView& root) {
  const auto seen = root.find("seen");
  fmt::print(
      "The last {:.0f} s: {:.1f} requests finished a second, {:.1f} tokens a second; {:.1f} running, {:.1f} "
      "waiting;\n"
      "memory bandwidth {}, compute {}.{}\n",
      number_of(root, "window_s"), number_of(seen, "finished_s"), number_of(seen, "generated_tokens_s"),
      number_of(seen, "running"), number_of(seen, "waiting"), share_text(seen, "bandwidth_share"),
      share_text(seen, "compute_share"),
      root.find("complete") && root.find("complete")->boolean() == false
          ? " (The server has not been up for longer.)"
          : "");
}

void print_finding(int place, const JsonView& finding) {
  fmt::print("\n{}. {}", place, text_of(finding, "cause"));
  if (const double gain = number_of(finding, "gain"); gain >= 0.02)
    fmt::print("  (takes about {:.0f} % of the throughput; without it x{:.2f})",
               100 * number_of(finding, "lost"), 1 + gain);
  fmt::print("\n   {}\n   ", text_of(finding, "text"));
  if (const auto evidence = finding.find("evidence")) {
    bool first = true;
    evidence->each_member([&](std::string_view name, JsonView value) {
      fmt::print("{}{} {}", first ? "" : ", ", name, short_number(value.number().value_or(0)));
      first = false;
      return true;
    });
  }
  fmt::print("\n   change: {}\n", text_of(finding, "setting"));
}

}  // namespace

int doctor(const DoctorOptions& options) {
  Result<Target> target = parse_target(options.url);
  if (!target) {
    failure(target.error());
    return kExitWrongUse;
  }
  constexpr std::string_view kRoute = "/v1/diagnosis";
  if (target->prefix.ends_with(kRoute)) target->prefix.resize(target->prefix.size() - kRoute.size());
  target->api_key = options.api_key;
  const Result<Outcome> answer =
      fetch(*target, {"GET", fmt::format("/v1/diagnosis?window_s={}", options.window_s), ""},
            TimeNs(options.timeout_ms) * 1'000'000);
  if (!answer) return failure(answer.error());
  if (answer->status == 401)
    return failure(options.url + ": the server asks for a key: --api-key KEY, or SLUICE_API_KEY");
  if (!answer->error.empty())
    return failure(fmt::format("{}/v1/diagnosis: {}", options.url, answer->error.substr(0, 200)));
  if (options.json) return fmt::print("{}\n", answer->body), 0;
  const auto document = JsonDocument::parse(answer->body);
  const auto findings = document ? document->root().find("findings") : std::nullopt;
  if (!findings || !findings->is_array())
    return failure(options.url + "/v1/diagnosis: not what a sluice server says");
  print_seen(document->root());
  if (findings->size() == 0 && number_of(document->root().find("seen"), "steps") == 0)
    fmt::print("\nNo step ran in this window, so nothing can be said of throughput: ask again under load.\n");
  else if (findings->size() == 0)
    fmt::print("\nNothing that costs throughput is evident.\n");
  for (size_t i = 0; i < findings->size(); ++i) print_finding(int(i) + 1, findings->at(i));
  return 0;
}

}  // namespace sluice::cli
