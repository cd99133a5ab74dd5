#include "cli/attribution_table.h"

#include <fmt/format.h>

#include "cli/json_number.h"

namespace sluice::cli {

Result<std::string> attribution_table(std::string_view json) {
  const Error unlike{ErrorCode::kIo, "/v1/requests/attribution: not what a sluice server says"};
  auto document = JsonDocument::parse(json);
  if (!document) return unlike;
  const JsonView root = document->root();
  const auto all = root.find("spans"), slowest = root.find("slowest");
  const auto slow = slowest ? slowest->find("spans") : std::nullopt;
  if (!all || !slow || all->size() != slow->size()) return unlike;
  std::string out =
      fmt::format("{:<14}{:>12}{:>9}{:>16}{:>9}\n", "span", "mean ms", "share", "slowest 5 % ms", "share");
  for (size_t i = 0; i < all->size(); ++i) {
    const JsonView mine = all->at(i), its = slow->at(i);
    if (number_of(mine, "mean_ms") == 0) continue;
    const auto name = mine.find("name");
    out +=
        fmt::format("{:<14}{:>12.2f}{:>8.1f}%{:>16.2f}{:>8.1f}%\n", name ? name->string().value_or("?") : "?",
                    number_of(mine, "mean_ms"), 100 * number_of(mine, "share"), number_of(its, "mean_ms"),
                    100 * number_of(its, "share"));
  }
  out += fmt::format("{:<14}{:>12.2f}{:>9}{:>16.2f}\n", "whole", number_of(root, "mean_ms"), "",
                     number_of(slowest, "mean_ms"));
  const auto complete = root.find("complete");
  out += fmt::format("of {:.0f} requests{}\n", number_of(root, "requests"),
                     complete && complete->boolean() == false ? ", the last that the server keeps" : "");
  return out;
}

}  // namespace sluice::cli
