#include <algorithm>
#include <vector>

#include "cli/config.h"

namespace sluice::cli {
namespace {

// Levenshtein's distance over two rows.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = int(i);
    for (size_t j = 1; j <= b.size(); ++j)
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
    std::swap(row, above);
  }
  return above[b.size()];
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  std::string best;
  int best_distance = int(name.size() / 2) + 1;
  for (const std::string& candidate : known) {
    int distance = edit_distance(name, candidate);
    // The right key in the wrong section: "port" for "server.port".
    if (last_part(name) == last_part(candidate)) distance = std::min(distance, 1);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

}  // namespace sluice::cli
