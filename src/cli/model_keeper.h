// The models of a server: loads one beside those that serve, and frees those that nobody answers with any more.
//
// A load runs in a thread of its own, one at a time. Freeing has one too, since it takes long, and waits for a
// step that is under way: one that hangs would never be waited for to the end, so such a model stays where it
// is. All else is the main thread's: it sleeps in Signals::wait and is woken when a load has ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cli/watchdog.h"
#include "engine/served_model.h"

namespace sluice::cli {

class ModelKeeper {
 public:
  // `enter`: called by the thread of each load before all else. `stuck_s`: a step of a model that nobody has
  // any more hangs when it takes longer.
  ModelKeeper(std::function<void()> enter, int stuck_s);
  // Of what was kept nobody has anything. Waits for a load that is under way; what it gives is freed. Ends the
  // process, with a status other than 0, where a model hangs.
  ~ModelKeeper();
  ModelKeeper(const ModelKeeper&) = delete;

  // `background`: all threads that the load begins, its engine's for good, have the lowest priority.
  enum class Priority { usual, background };
  // No load is under way. `listener`: on the load's thread.
  void load(LoadOptions options, LoadListener listener, Priority priority = Priority::usual);
  bool is_loading() const { return thread_.joinable() && !done_.load(); }
  // What a load that has ended gave, once.
  std::optional<Result<std::unique_ptr<ServedModel>>> take();

  // For any number of holders, on any threads; after the last of them it is freed. `watchdog_s`, `on_stuck`: as
  // Watchdog has them.
  std::shared_ptr<ServedModel> keep(std::unique_ptr<ServedModel> model, int watchdog_s,
                                    std::function<void()> on_stuck = nullptr);
  // Memory is about to come back: a model is being freed that does not hang. When that ends, the main thread is
  // woken.
  bool is_freeing() const;
  // Of a CPU's memory, what the caches of all models that are here may still take.
  size_t promised_bytes() const;
  // Engine::stop_gathering of all that somebody has.
  void stop_gathering();

 private:
  struct Kept {
    std::unique_ptr<ServedModel> model;
    Watchdog watchdog;  // ends first
    bool stuck = false;
    Kept(std::unique_ptr<ServedModel> m, int limit_s, std::function<void()> on_stuck)
        : model(std::move(m)), watchdog(model->engine(), limit_s, std::move(on_stuck)) {}
  };
  struct Unused {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::unique_ptr<Kept>> models;  // guarded by mutex
    bool over = false;                          // guarded by mutex
    bool at_work = false;                       // guarded by mutex
  };

  void free_unused();  // the freeing thread

  const std::function<void()> enter_;
  const TimeNs stuck_ns_;
  std::vector<std::weak_ptr<ServedModel>> held_;
  const std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();  // holders have it too
  std::optional<Result<std::unique_ptr<ServedModel>>> loaded_;         // the load's thread, until done_
  std::atomic<bool> done_{false};
  std::thread thread_, freeing_;
};

}  // namespace sluice::cli
