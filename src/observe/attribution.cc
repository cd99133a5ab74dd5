#include "observe/attribution.h"

#include <algorithm>

namespace sluice {
namespace {

Attribution sum_of(std::span<const RequestAccount* const> requests) {
  Attribution a;
  for (const RequestAccount* r : requests) {
    ++a.requests;
    a.total += r->total();
    for (size_t i = 0; i < size_t(kSpans); ++i) a.spans.ns[i] += r->spans().ns[i];
  }
  return a;
}

}  // namespace

WindowAttribution attribution_of(std::span<const RequestLog::Kept> requests, TimeNs from) {
  std::vector<const RequestAccount*> inside;
  for (const RequestLog::Kept& kept : requests) {
    if (kept.account->finished >= from) inside.push_back(kept.account.get());
  }
  std::sort(inside.begin(), inside.end(), [](const auto* a, const auto* b) { return a->total() > b->total(); });
  const size_t slow = (inside.size() + 19) / 20;
  return {sum_of(inside), sum_of(std::span(inside).first(slow))};
}

}  // namespace sluice
