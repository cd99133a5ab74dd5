#include "cli/model_keeper.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "base/check.h"
#include "base/log.h"
#include "base/meter.h"
#include "cli/signals.h"

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kLook{10}, kSeldom{1000};

Counter& stuck_engines() {
  return meter::counter(
      "sluice_stuck_engines_total",
      "Canaries and models that another one took the place of, with a step that does not end.");
}

}  // namespace

ModelKeeper::ModelKeeper(std::function<void()> enter, int stuck_s)
    : enter_(std::move(enter)), stuck_ns_(TimeNs(stuck_s) * 1'000'000'000) {
  stuck_engines();
  freeing_ = std::thread([this] { free_unused(); });
}

ModelKeeper::~ModelKeeper() {
  if (thread_.joinable()) thread_.join();
  {
    std::lock_guard lock(unused_->mutex);
    unused_->over = true;
  }
  unused_->changed.notify_all();
  freeing_.join();
  if (unused_->models.empty()) return;
  LOG(error, "stopped with {} engine{} that cannot be, amid a step", unused_->models.size(),
      unused_->models.size() == 1 ? "" : "s");
  std::fflush(nullptr);
  _exit(1);
}

void ModelKeeper::load(LoadOptions options, LoadListener listener, Priority priority) {
  CHECK(!thread_.joinable(), "one load at a time");
  done_.store(false);
  thread_ = std::thread([this, options = std::move(options), listener = std::move(listener), priority] {
    // On Linux a thread's own, and inherited by those that it begins.
    if (priority == Priority::background) setpriority(PRIO_PROCESS, 0, 19);
    enter_();
    loaded_ = load_model(options, listener);
    done_.store(true);
    Signals::wake();
  });
}

std::optional<Result<std::unique_ptr<ServedModel>>> ModelKeeper::take() {
  if (!thread_.joinable() || !done_.load()) return std::nullopt;
  thread_.join();
  return std::exchange(loaded_, std::nullopt);
}

std::shared_ptr<ServedModel> ModelKeeper::keep(std::unique_ptr<ServedModel> model, int watchdog_s,
                                               std::function<void()> on_stuck) {
  ServedModel* const served = model.get();
  auto kept = std::make_unique<Kept>(std::move(model), watchdog_s, std::move(on_stuck));
  return {served, [unused = unused_, kept = kept.release()](ServedModel*) {
            std::unique_ptr<Kept> over(kept);
            {
              std::lock_guard lock(unused->mutex);
              unused->models.push_back(std::move(over));
            }
            unused->changed.notify_all();
          }};
}

void ModelKeeper::free_unused() {
  pthread_setname_np(pthread_self(), "sluice-free");
  std::unique_lock lock(unused_->mutex);
  for (;;) {
    std::vector<std::unique_ptr<Kept>> idle;
    bool waits = false;
    for (auto& kept : unused_->models) {
      const TimeNs since = kept->model->engine().status().busy_since;
      if (since == 0) {
        idle.push_back(std::move(kept));
      } else if (!kept->stuck && now_ns() - since > stuck_ns_) {
        kept->stuck = true;
        stuck_engines().add();
        LOG(error, "{} cannot be freed: its engine has been at one step for {:.1f} s", kept->model->path(),
            seconds(now_ns() - since));
      }
      waits |= kept != nullptr && !kept->stuck;
    }
    std::erase(unused_->models, nullptr);
    if (!idle.empty()) {
      lock.unlock();
      for (auto& kept : idle) {
        const std::string path = kept->model->path();
        kept.reset();
        LOG(info, "{} is freed", path);
      }
      lock.lock();
      continue;
    }
    if (unused_->over && !waits) return;
    if (unused_->models.empty())
      unused_->changed.wait(lock);
    else  // its step may end after all
      unused_->changed.wait_for(lock, waits ? kLook : kSeldom);
  }
}

}  // namespace sluice::cli
