// The models of a server: loads one beside those that serve, and frees those that nobody answers with any more.
//
// A load runs in a thread of its own, one at a time. All else is the main thread's: it sleeps in Signals::wait
// and is woken when a load has ended, or the last answer of a model that another one took the place of.
#pragma once

#include <atomic>
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
  // `enter`: called by the thread of each load before all else.
  explicit ModelKeeper(std::function<void()> enter) : enter_(std::move(enter)) {}
  // Of what was kept nobody has anything. Waits for a load that is under way; what it gives is freed.
  ~ModelKeeper() {
    if (thread_.joinable()) thread_.join();
    free_unused();
  }
  ModelKeeper(const ModelKeeper&) = delete;

  // `background`: all threads that the load begins, its engine's for good, have the lowest priority.
  enum class Priority { usual, background };
  // No load is under way. `listener`: on the load's thread.
  void load(LoadOptions options, LoadListener listener, Priority priority = Priority::usual);
  bool is_loading() const { return thread_.joinable() && !done_.load(); }
  // What a load that has ended gave, once.
  std::optional<Result<std::unique_ptr<ServedModel>>> take();

  // For any number of holders, on any threads; after the last of them it waits for free_unused, since freeing
  // it takes long. `watchdog_s`: as Watchdog has it.
  std::shared_ptr<ServedModel> keep(std::unique_ptr<ServedModel> model, int watchdog_s);
  void free_unused();

 private:
  struct Kept {
    std::unique_ptr<ServedModel> model;
    Watchdog watchdog;  // ends first
    Kept(std::unique_ptr<ServedModel> m, int limit_s)
        : model(std::move(m)), watchdog(model->engine(), limit_s) {}
  };
  struct Unused {
    std::mutex mutex;
    std::vector<std::unique_ptr<Kept>> models;  // guarded by mutex
  };

  const std::function<void()> enter_;
  const std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();  // holders have it too
  std::optional<Result<std::unique_ptr<ServedModel>>> loaded_;         // the load's thread, until done_
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace sluice::cli
