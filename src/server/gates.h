// What a request passes on its way to a model, in this order; each may answer in its place.
//
//   1. key     identify  is it let in at all (api_keys.h)                                        401
//   -  pool    enter_canary, send_to_canary: the canary here or elsewhere (traffic/canary.h), else the stable
//   pool
//   2. rates   admit     its key's and its lane's requests and tokens of this minute             429
//   3. load    admit     places among those that wait for their first token (traffic/)           429
//   4. breaker pass, and with the pool: nobody is asked who keeps failing (traffic/circuit_breaker.h) 503
//   5. engine  Generation::start: the queue's bound, and the lanes behind it (docs/scheduling.md) 429, 503
//      or, for the canary's part of the requests, its engine, or another server: ProxiedAnswer::start
//
// Key and pool are looked at before the body is read; rates and load count tokens, so they come behind reading
// and tokenizing (a canary's tokens are estimated from the body's length). Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/api_keys.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/proxied_answer.h"
#include "server/traffic/admission.h"
#include "server/traffic/canary.h"
#include "server/traffic/passage.h"
#include "server/upstream.h"

namespace sluice {

// Whether settings make sense together: what a start, and a reload, refuses.
Status check_traffic(const TrafficSettings& settings);

// As the gates stand now; limit 0: there is none.
struct TrafficState {
  int limit = 0, waiting = 0;
  CircuitBreaker::State stable_breaker = {}, canary_breaker = {};
  bool has_canary = false, canary_rolled_back = false;
  double canary_percent = 0;
  std::string canary_verdict;  // what it was worse in; empty: nothing
};

class Gates {
 public:
  Gates(ApiKeys keys, const TrafficSettings& settings);

  // Whose key the request carries: its place from 1; 0: nobody's, or none is asked for.
  uint32_t identify(const HttpRequest& request) const;
  bool is_open() const { return keys_.empty(); }
  const ApiKeys& keys() const { return keys_; }

  // Puts the permit into the plan, shortens the answer where it says so, and tells both in headers of the
  // exchange. The answer in its place, if it is not admitted. A canary's requests take no place; one whose plan
  // has a permit comes back from there, and needs one.
  std::optional<HttpResponse> admit(GenerationPlan& plan, int context, HttpExchange& exchange);
  // The stable pool's breaker: puts the passage into the plan, or gives the answer in its place.
  std::optional<HttpResponse> pass(GenerationPlan& plan);

  // A generation request before its body is read, where there is a canary in this process: true with a passage,
  // it is the canary's; without, the stable pool's. `wish_always`: whatever its headers say, since it names the
  // canary's model.
  Passage enter_canary(const HttpRequest& request, uint32_t tenant, bool wish_always = false);
  // Whether the canary, if there is one, is another server.
  bool asks_elsewhere() const { return has_canary_.load() && !canary_is_here_.load(); }
  // To who asks for it by name, where enter_canary let nobody pass.
  HttpResponse refuse_named() const;
  // Of this process. `times`: how long it takes says something beside the stable pool. Starts it over.
  void set_canary(bool present, bool times);

  // A generation request before its body is read. True: the canary's server answers it, by `exchange`; false:
  // the model here does, and `request` is as it was. `fall_back`: answers it here after all.
  bool send_to_canary(HttpRequest& request, uint32_t tenant, Lane lane,
                      const std::shared_ptr<HttpExchange>& exchange, ProxiedAnswer::FallBack fall_back);

  // Starts the canary over where its settings changed. Errors: settings that make no sense.
  Status configure(const TrafficSettings& settings);
  TrafficState state() const;
  void show() const;  // in the meters, when they are read
  // Ends what the canary's server answers; nothing is sent there any more.
  void stop();

 private:
  bool is_canarys(const HttpRequest& request, uint32_t tenant, const std::string& env) const;
  Passage pass_canary();     // none: it keeps failing, or has as many as it may
  void start_canary_over();  // needs mutex_
  void add_rate_headers(const Ask& ask, TimeNs now, HttpExchange& exchange) const;

  const ApiKeys keys_;
  const std::shared_ptr<Admission> admission_;  // permits hold it too
  const std::shared_ptr<Canary> canary_ = std::make_shared<Canary>();
  const std::shared_ptr<PoolHealth> stable_health_, canary_health_;  // passages hold them too
  std::mutex mutex_;
  CanarySettings canary_settings_;                  // guarded by mutex_
  std::shared_ptr<Upstream> upstream_;              // null: there is no canary; guarded by mutex_
  std::vector<std::shared_ptr<Upstream>> retired_;  // whose streams go on; guarded by mutex_
  bool compares_times_ = true;                      // guarded by mutex_
  std::atomic<bool> has_canary_{false}, canary_is_here_{false};
};

}  // namespace sluice
