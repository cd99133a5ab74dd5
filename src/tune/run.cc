#include "tune/run.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace sluice::tune {
namespace {

double warm_up_end(const Run& run) {
  if (run.concurrency == 0) return run.load_s / 10;
  std::vector<double> ended;
  for (const Request& r : run.requests)
    if (r.end != Request::End::open) ended.push_back(r.ended_s);
  const size_t first = size_t(run.concurrency);
  if (ended.size() < first) return run.load_s / 3;
  std::nth_element(ended.begin(), ended.begin() + ptrdiff_t(first - 1), ended.end());
  return std::min(ended[first - 1], run.load_s / 3);
}

// Of a request's tokens, those that came between two times.
double tokens_between(const Request& r, double from, double to) {
  if (r.first_s < 0) return 0;
  if (r.ended_s <= r.first_s) return r.first_s >= from && r.first_s < to ? r.tokens : 0;
  const double overlap = std::min(to, r.ended_s) - std::max(from, r.first_s);
  return overlap > 0 ? r.tokens * overlap / (r.ended_s - r.first_s) : 0;
}

std::array<double, 3> spread(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return {percentile(values, 0.5), percentile(values, 0.95), percentile(values, 0.99)};
}

double p95(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return percentile(values, 0.95);
}

// How long nothing ended behind each of `ends`, the last of which is followed by the end of the load.
std::vector<double> pauses_behind(const std::vector<double>& ends, double load_s) {
  std::vector<double> pauses;
  for (size_t i = 0; i < ends.size(); ++i)
    pauses.push_back((i + 1 < ends.size() ? ends[i + 1] : load_s) - ends[i]);
  return pauses;
}

// About `count` windows of equal length behind the warm-up, each from the end of one request (exclusive) to
// that of another. Where requests end in batches, a window that cuts a batch counts all of it or nothing: so a
// border lies only where a pause follows that is at least half as long as the third longest there is (one or
// two may be hiccups).
std::vector<Window> windows_of(const Run& run, double warm_up_s, int count) {
  std::vector<double> ends;
  for (const Request& r : run.requests)
    if (r.end != Request::End::open && r.ended_s >= warm_up_s) ends.push_back(r.ended_s);
  if (ends.size() < 2) return {};
  std::sort(ends.begin(), ends.end());
  const std::vector<double> pauses = pauses_behind(ends, run.load_s);
  std::vector<double> longest = pauses;
  const size_t third = std::min<size_t>(2, longest.size() - 1);
  std::nth_element(longest.begin(), longest.begin() + ptrdiff_t(third), longest.end(), std::greater<>());
  std::vector<double> places;
  for (size_t i = 0; i < ends.size(); ++i)
    if (pauses[i] >= longest[third] / 2) places.push_back(ends[i]);
  std::vector<Window> windows;
  double from = -1;
  for (int i = 0; i <= count && !places.empty(); ++i) {
    const double ideal = warm_up_s + i * (run.load_s - warm_up_s) / count;
    const double place = *std::min_element(places.begin(), places.end(), [&](double a, double b) {
      return std::abs(a - ideal) < std::abs(b - ideal);
    });
    if (from >= 0 && place > from) windows.push_back({from, place});
    from = std::max(from, place);
  }
  return windows;
}

// Requests that are still open tell how long they have taken at least. Where more than one in twenty has taken
// longer than the p95 of those that ended, they count with that.
void add_open(Figures& f, std::vector<double>& e2e, const std::vector<double>& ages) {
  std::vector<double> longer;
  for (const double age : ages)
    if (e2e.empty() || age > f.e2e_ms[1]) longer.push_back(age);
  if (longer.empty() || double(longer.size()) <= 0.05 * double(e2e.size() + longer.size())) return;
  e2e.insert(e2e.end(), longer.begin(), longer.end());
  f.e2e_ms = spread(e2e);
  f.p95_at_least = true;
}

void add_window(Figures& f, const Run& run, const Window& w) {
  std::vector<double> e2e;
  double tokens = 0;
  for (const Request& r : run.requests) {
    tokens += tokens_between(r, w.from_s, w.to_s);
    if (r.end == Request::End::completed && r.ended_s > w.from_s && r.ended_s <= w.to_s)
      e2e.push_back(1e3 * (r.ended_s - r.sent_s));
  }
  f.windows.push_back(w);
  f.qps_samples.push_back(double(e2e.size()) / (w.length_s()));
  f.tok_s_samples.push_back(tokens / (w.length_s()));
  f.p95_samples.push_back(p95(std::move(e2e)));
}

// The interval as wide as the windows say, around what all of them together came to.
Estimate centred(const std::vector<double>& samples, double value) {
  const Estimate e = estimate(samples);
  const double shift = value - e.mean;
  return {value, e.low + shift, e.high + shift, e.samples};
}

double mean_over(const std::vector<Window>& windows, const std::vector<double>& samples) {
  double sum = 0, length = 0;
  for (size_t i = 0; i < windows.size(); ++i)
    sum += samples[i] * windows[i].length_s(), length += windows[i].length_s();
  return length > 0 ? sum / length : NAN;
}

}  // namespace

Figures figures_of(const Run& run, int windows) {
  Figures f;
  f.warm_up_s = warm_up_end(run);
  f.measured_s = run.load_s - f.warm_up_s;
  if (run.requests.empty() || f.measured_s <= 0) return f;
  std::vector<double> e2e, first, ages;
  for (const Request& r : run.requests) {
    const double took_ms = 1e3 * (r.ended_s - r.sent_s);
    if (r.end == Request::End::open) ages.push_back(took_ms);
    if (r.end == Request::End::open || r.ended_s <= f.warm_up_s) continue;
    f.failed += r.end == Request::End::failed;
    if (r.end == Request::End::failed) continue;
    e2e.push_back(took_ms);
    if (r.first_s >= 0) first.push_back(1e3 * (r.first_s - r.sent_s));
  }
  f.completed = int(e2e.size()), f.open = int(ages.size());
  for (const Window& w : windows_of(run, f.warm_up_s, windows)) add_window(f, run, w);
  f.qps = centred(f.qps_samples, mean_over(f.windows, f.qps_samples));
  f.tok_s = centred(f.tok_s_samples, mean_over(f.windows, f.tok_s_samples));
  f.e2e_ms = spread(e2e), f.first_token_ms = spread(first);
  add_open(f, e2e, ages);
  f.p95_ms = centred(f.p95_samples, f.e2e_ms[1]);
  return f;
}

bool is_told(const Figures& f) { return f.completed > 0 && std::isfinite(f.tok_s.mean); }

double share_of_one(const Run& run) { return run.steps > 0 ? run.steps_of_one / run.steps : 0; }

}  // namespace sluice::tune
