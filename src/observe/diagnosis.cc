#include "observe/diagnosis.h"

#include <algorithm>

namespace sluice {

std::vector<Finding> diagnose(const Vitals& vitals) {
  std::vector<Finding> findings;
  for (const auto rules : {device_rules(), batching_rules(), host_rules(), token_rules()})
    for (const Rule rule : rules)
      if (auto found = rule(vitals)) findings.push_back(std::move(*found));
  for (Finding& f : findings) f.lost = std::clamp(f.lost, 0.0, 0.99);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.lost > b.lost; });
  return findings;
}

}  // namespace sluice
