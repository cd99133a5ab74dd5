// What a request passes on its way to a model, in this order; each may answer in its place.
//
//   1. key     identify  is it let in at all (api_keys.h)                                        401
//   2. rates   admit     its key's and its lane's requests and tokens of this minute             429
//   3. load    admit     places among those that wait for their first token (traffic/)           429
//   4. engine  Generation::start: the queue's bound, and the lanes behind it (docs/scheduling.md) 429, 503
//
// The key is looked at before the body is read; rates and load count tokens, so they come behind reading and
// tokenizing. Any thread.
#pragma once

#include <memory>
#include <optional>

#include "server/api_keys.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/traffic/admission.h"

namespace sluice {

class Gates {
 public:
  Gates(ApiKeys keys, const TrafficSettings& settings);

  // Whose key the request carries: its place from 1; 0: nobody's, or none is asked for.
  uint32_t identify(const HttpRequest& request) const;
  bool is_open() const { return keys_.empty(); }
  const ApiKeys& keys() const { return keys_; }

  // Puts the permit into the plan, and rate-limit headers on the exchange. The answer in its place, if it is
  // not admitted.
  std::optional<HttpResponse> admit(GenerationPlan& plan, int context, HttpExchange& exchange);

  void configure(const TrafficSettings& settings) { admission_->configure(settings); }

 private:
  const ApiKeys keys_;
  const std::shared_ptr<Admission> admission_;  // permits hold it too
};

}  // namespace sluice
