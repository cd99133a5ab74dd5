#include "tune/search.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::tune {
namespace {

void put(Configuration& c, const std::string& key, const std::string& value) {
  if (value.empty())
    c.clear(key);
  else
    c.set(key, value);
}

}  // namespace

bool better(const Prediction& a, const Prediction& b) {
  if (a.possible != b.possible) return a.possible;
  const bool a_kept = a.excess <= 1, b_kept = b.excess <= 1;
  if (a_kept != b_kept) return a_kept;
  if (!a_kept && a.excess != b.excess) return a.excess < b.excess;
  return a.qps > b.qps;
}

std::vector<Candidate> coordinate_descent(const Configuration& from, const std::vector<Axis>& axes,
                                          const std::function<Prediction(const Configuration&)>& predict,
                                          int most, size_t keep) {
  std::vector<Candidate> seen = {{from, predict(from)}};
  Candidate best = seen[0];
  int left = most - 1;
  for (bool moved = true; moved && left > 0;) {
    moved = false;
    for (const Axis& axis : axes) {
      const Configuration base = best.configuration;
      for (const std::string& value : axis.values) {
        Candidate c{base, {}};
        put(c.configuration, axis.key, value);
        const auto known = std::find_if(seen.begin(), seen.end(),
                                        [&](const Candidate& s) { return s.configuration == c.configuration; });
        if (known != seen.end() || left == 0) continue;
        --left;
        c.prediction = predict(c.configuration);
        seen.push_back(c);
        if (better(c.prediction, best.prediction)) best = c, moved = true;
      }
    }
  }
  const Prediction start = seen[0].prediction;
  std::erase_if(seen,
                [&](const Candidate& c) { return !c.prediction.possible || !better(c.prediction, start); });
  std::stable_sort(seen.begin(), seen.end(),
                   [](const Candidate& a, const Candidate& b) { return better(a.prediction, b.prediction); });
  if (seen.size() > keep) seen.resize(keep);
  return seen;
}

std::vector<Axis> numeric_axes(int concurrency, bool card) {
  std::vector<Axis> axes = {{"scheduler.target_itl_ms", {"", "20", "50", "100", "200", "500", "1000"}}};
  Axis steps{"engine.step_tokens", {"", "256", "1024", "2048"}};
  if (card) steps.values = {"", "1024", "4096", "8192"};
  axes.push_back(steps);
  Axis seats{"engine.max_sequences", {}};
  const int most = concurrency > 0 ? concurrency : 256;
  for (const int n : {most, most * 3 / 4, most / 2, most / 4, most / 8})
    if (n >= 1) seats.values.push_back(fmt::format("{}", n));
  axes.push_back(seats);
  axes.push_back({"engine.mixed_prompt_tokens", {"", "128", "512"}});
  return axes;
}

}  // namespace sluice::tune
