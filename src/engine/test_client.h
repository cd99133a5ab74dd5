// A client for tests: submits, waits for events, collects them.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace sluice {

class TestClient {
 public:
  TestClient(Engine& engine, Request request) {
    auto result = engine.submit(std::move(request), [shared = shared_] {
      std::lock_guard lock(shared->mutex);
      ++shared->notified;
      shared->wake.notify_all();
    });
    if (result)
      stream = *result;
    else
      error = result.error();
  }

  // Next event, waiting for it.
  TokenEvent next() {
    TokenEvent event;
    for (;;) {
      const int seen = notifications();
      if (stream->pop(event)) return event;
      std::unique_lock lock(shared_->mutex);
      shared_->wake.wait(lock, [&] { return shared_->notified != seen; });
    }
  }
  // Collects ids until the end.
  void finish() {
    while (reason == FinishReason::none) take(next());
  }
  void take(const TokenEvent& event) {
    if (event.id >= 0) ids.push_back(event.id), logprobs.push_back(event.logprobs.logprob);
    reason = event.finish;
    last = event;
  }
  int notifications() const {
    std::lock_guard lock(shared_->mutex);
    return shared_->notified;
  }

  std::shared_ptr<RequestStream> stream;
  Error error;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::none;
  TokenEvent last;

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    int notified = 0;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace sluice
