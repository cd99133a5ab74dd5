#include "cli/model_keeper.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
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

// A block that holds something is memory already.
size_t unwritten_bytes(const Engine& engine) {
  const EngineInfo& info = engine.info();
  const EngineStatus status = engine.status();
  if (info.device.is_card() || status.blocks_total == 0) return 0;
  const int written = std::min(status.blocks_total, status.blocks_used + status.blocks_cached);
  return info.kv_bytes / size_t(status.blocks_total) * size_t(status.blocks_total - written);
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
  const std::shared_ptr<ServedModel> held{served, [unused = unused_, kept = kept.release()](ServedModel*) {
                                            std::unique_ptr<Kept> over(kept);
                                            {
                                              std::lock_guard lock(unused->mutex);
                                              unused->models.push_back(std::move(over));
                                            }
                                            unused->changed.notify_all();
                                          }};
  std::erase_if(held_, [](const auto& gone) { return gone.expired(); });
  held_.push_back(held);
  return held;
}

bool ModelKeeper::is_freeing() const {
  std::lock_guard lock(unused_->mutex);
  return unused_->at_work || std::any_of(unused_->models.begin(), unused_->models.end(),
                                         [](const auto& kept) { return !kept->stuck; });
}

size_t ModelKeeper::promised_bytes() const {
  size_t bytes = 0;
  for (const auto& held : held_)
    if (const auto model = held.lock()) bytes += unwritten_bytes(model->engine());
  std::lock_guard lock(unused_->mutex);
  for (const auto& kept : unused_->models) bytes += unwritten_bytes(kept->model->engine());
  return bytes;
}

void ModelKeeper::stop_gathering() {
  for (const auto& held : held_)
    if (const auto model = held.lock()) model->engine().stop_gathering();
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
        Signals::wake();
      }
      waits |= kept != nullptr && !kept->stuck;
    }
    std::erase(unused_->models, nullptr);
    if (!idle.empty()) {
      unused_->at_work = true;
      lock.unlock();
      for (auto& kept : idle) {
        const std::string path = kept->model->path();
        kept.reset();
        LOG(info, "{} is freed", path);
      }
      lock.lock();
      unused_->at_work = false;
      Signals::wake();
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
