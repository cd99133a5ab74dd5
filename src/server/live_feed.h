// GET /v1/live: the server's own numbers as server-sent events, one a second.
//
// One thread takes a sample a second (observe/live.h) and makes its JSON once for all listeners; each
// listener's own connection sends it. The samples of the last minutes are kept, so that a new listener begins
// with a picture. A listener that takes less than it is sent is dropped once limits::kStreamHighWater bytes
// wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/served_model.h"
#include "observe/live.h"
#include "observe/vitals.h"
#include "server/http.h"

namespace sluice {

class LiveFeed {
 public:
  LiveFeed() = default;
  ~LiveFeed() { stop(); }
  // Whose numbers they are from now on, and what they are told as shares of. The first call starts the thread.
  // A model that another one takes the place of is held for a second more.
  void serve(std::shared_ptr<ServedModel> model, std::string model_name, LiveSources sources);
  // Ends all streams and joins the thread. Idempotent.
  void stop();

  // The connection's thread. `head_only`: the client asked for the head alone. Answers 429 over
  // limits::kLiveListeners.
  void listen(const std::shared_ptr<HttpExchange>& exchange, bool head_only);
  // What was seen of the server in the last `window_s` seconds, the requests' accounts left out. Any thread.
  Vitals vitals(double window_s) const;
  MachineReport machine() const;  // once started; any thread
  int listeners() const { return listening_.load(std::memory_order_relaxed); }

 private:
  class Listener;
  // One past second, as the charts need it.
  struct Point {
    int64_t unix_s = 0;
    double in = 0, out = 0;  // tokens a second
    int running = 0, waiting = 0;
    double kv = 0;                                  // 0..1
    double first_token_ms = 0, inter_token_ms = 0;  // medians
  };
  static constexpr size_t kPoints = 180;

  void run();
  void publish(TimeNs now);
  void take_up();
  bool wants_look(TimeNs now);
  void raise_peaks(const LiveSample& sample);  // needs mutex_
  void measure_if_idle(const LiveSample& sample);
  std::string hello() const;  // needs mutex_
  std::string event(const LiveSample& sample, int64_t unix_s) const;
  void forget(const Listener* listener);

  struct Served {
    std::shared_ptr<ServedModel> model;
    std::string name;
    LiveSources sources;
  };
  std::optional<Served> next_;  // guarded by mutex_
  // Written by the feed's thread under mutex_, at the latest a second after they were set.
  std::shared_ptr<ServedModel> model_;
  std::string model_name_;
  LiveSources sources_;
  LiveSampler sampler_;  // the feed's thread
  VitalsHistory history_;
  std::vector<CardReading> cards_;  // guarded by mutex_
  std::atomic<int> listening_{0};
  mutable std::atomic<TimeNs> asked_at_{0};  // somebody wanted vitals
  TimeNs looked_at_ = 0;                     // at host and cards; the feed's thread
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Point> points_;                          // guarded by mutex_
  std::vector<std::shared_ptr<Listener>> listeners_;  // guarded by mutex_
  bool stopping_ = false;                             // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice
