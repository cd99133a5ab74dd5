// Threads for work on text that is too long for a network thread: parsing large bodies, templates, tokenising.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice {

class TextPool {
 public:
  TextPool(int threads, int max_waiting);
  ~TextPool() { stop(); }

  // False when `max_waiting` jobs wait already, or after stop. Any thread.
  bool submit(std::function<void()> job);
  // Runs what waits, then joins. Idempotent.
  void stop();

 private:
  void run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;  // guarded by mutex_
  bool stopping_ = false;                   // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace sluice
