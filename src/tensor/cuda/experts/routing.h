// Which row goes to which expert, in device memory: made once per layer and step, read by the products.
#pragma once

#include <cstdint>

#include "tensor/backend.h"

namespace sluice::cuda {

// The arrays in ExpertsArgs::routing, [choices] each; choice t * K + k is row t's k-th best expert. `starts`
// [E + 1] is the backend's own: expert e's choices lie at places starts[e] .. starts[e + 1] - 1, in the order
// of their rows.
struct Routing {
  int32_t* expert;  // [choice]
  int32_t* place;   // [choice]
  int32_t* row;     // [place] the row of x
  float* weight;    // [choice]
  int32_t* starts;
  int choices, experts, per_token;

  Routing(const ExpertsArgs& a, int32_t* starts_of_experts)
      : starts(starts_of_experts),
        choices(int(a.x.rows) * a.per_token),
        experts(int(a.router.cols)),
        per_token(a.per_token) {
    auto* at = a.routing.row<int32_t>(0);
    expert = at, place = at + choices, row = at + 2 * int64_t(choices);
    weight = reinterpret_cast<float*>(at + 3 * int64_t(choices));
  }
};

}  // namespace sluice::cuda
