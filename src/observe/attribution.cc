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

std::array<double, kAttributionParts> parts_of(const Attribution& a, double off_cpu_share) {
  const auto sum = [&](std::initializer_list<Span> spans) {
    double ns = 0;
    for (const Span span : spans) ns += double(a.spans[span]);
    return ns;
  };
  const double prefill = sum({Span::prefix_lookup, Span::prefill, Span::prefill_wait}),
               decode = sum({Span::decode, Span::decode_wait}), off = off_cpu_share;
  return {sum({Span::read, Span::parse, Span::tokenize}),
          sum({Span::queue}),
          prefill * (1 - off),
          decode * (1 - off),
          (prefill + decode) * off,
          sum({Span::preempted, Span::recompute}),
          sum({Span::paused, Span::other_choices, Span::format, Span::write})};
}

double off_cpu_share(std::span<const StepRecord> steps) {
  double off = 0, all = 0;
  for (const StepRecord& r : steps) {
    const TimeNs took = r.execute_ns + r.gap_ns;
    all += double(took);
    off += double(std::min(took, r.launch_off_cpu_ns + std::min(r.gap_ns, r.engine_off_cpu_ns)));
  }
  return all > 0 ? off / all : 0;
}

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
