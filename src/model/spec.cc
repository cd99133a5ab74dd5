#include "model/spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {

// llama3 (Llama 3.1's rule): long wavelengths are divided by `factor`, short ones stay, and between the two
// borders the frequency is mixed linearly in original_context / wavelength. Computed in double; the models were
// trained with float32 frequencies, whose rounding is far below what a position of 2^17 shows.
std::vector<float> RopeSpec::inverse_frequencies(int head_dim) const {
  const int columns = rotary ? rotary : head_dim;
  std::vector<float> out;
  for (int i = 0; i < columns / 2; i++) {
    double frequency = std::pow(double(base), -2.0 * i / columns);
    if (scaling == Scaling::linear) frequency /= factor;
    if (scaling == Scaling::llama3) {
      const double turns =
          original_context * frequency / (2 * std::numbers::pi);  // within the original context
      const double keep =
          std::clamp((turns - low_freq_factor) / (double(high_freq_factor) - low_freq_factor), 0.0, 1.0);
      frequency = keep * frequency + (1 - keep) * frequency / factor;
    }
    out.push_back(float(frequency));
  }
  return out;
}

namespace {

int groups_needed(int layers, int per_group) { return (layers + per_group - 1) / per_group; }

// The number of layers per group. Fewer groups mean fewer tables to keep and walk, more padding means memory
// lost: one group more is taken to be worth 2 % of the cache. 0 if no number keeps within both bounds.
int best_layers_per_group(int full, int windowed) {
  int best = 0;
  double best_cost = 0;
  for (int per_group = 1; per_group <= std::max(full, windowed); per_group++) {
    const int groups = groups_needed(full, per_group) + groups_needed(windowed, per_group);
    const double padding = 1 - double(full + windowed) / (double(groups) * per_group);
    const double cost = padding + 0.02 * groups;
    if (groups <= kMaxLayerGroups && padding <= 0.15 && (best == 0 || cost < best_cost))
      best = per_group, best_cost = cost;
  }
  return best;
}

}  // namespace

LayerGroups layer_groups(const ModelSpec& spec) {
  int windowed = 0;
  for (int layer = 0; layer < spec.layers; layer++) windowed += spec.layer_windowed(layer);
  const int full = spec.layers - windowed;
  LayerGroups out;
  out.group_of.assign(size_t(spec.layers), 0);
  out.index_in.assign(size_t(spec.layers), 0);
  const int per_group = full && windowed ? best_layers_per_group(full, windowed) : 0;
  if (per_group == 0) {
    // One kind only; or two that no grouping fits, where all layers keep everything and attention alone applies
    // the window.
    out.layers_per_group = spec.layers;
    out.groups.push_back({windowed == 0                       ? spec.full_window
                          : full == 0 || spec.full_window > 0 ? std::max(spec.window, spec.full_window)
                                                              : 0});
    for (int layer = 0; layer < spec.layers; layer++) out.index_in[size_t(layer)] = layer;
    return out;
  }
  out.layers_per_group = per_group;
  const int full_groups = groups_needed(full, per_group);
  for (int g = 0; g < full_groups + groups_needed(windowed, per_group); g++) {
    out.groups.push_back({g < full_groups ? spec.full_window : spec.window});
  }
  int seen[2] = {0, 0};  // layers of each kind so far
  for (int layer = 0; layer < spec.layers; layer++) {
    const bool w = spec.layer_windowed(layer);
    const int place = seen[w]++;
    out.group_of[size_t(layer)] = (w ? full_groups : 0) + place / per_group;
    out.index_in[size_t(layer)] = place % per_group;
  }
  return out;
}

}  // namespace sluice
