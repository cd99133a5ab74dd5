#include "cli/model_keeper.h"

#include <sys/resource.h>

#include "base/check.h"
#include "base/log.h"
#include "cli/signals.h"

namespace sluice::cli {

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

std::shared_ptr<ServedModel> ModelKeeper::keep(std::unique_ptr<ServedModel> model, int watchdog_s) {
  ServedModel* const served = model.get();
  auto kept = std::make_unique<Kept>(std::move(model), watchdog_s);
  return {served, [unused = unused_, kept = kept.release()](ServedModel*) {
            std::unique_ptr<Kept> over(kept);
            {
              std::lock_guard lock(unused->mutex);
              unused->models.push_back(std::move(over));
            }
            Signals::wake();
          }};
}

void ModelKeeper::free_unused() {
  std::vector<std::unique_ptr<Kept>> models;
  {
    std::lock_guard lock(unused_->mutex);
    models.swap(unused_->models);
  }
  for (auto& kept : models) {
    const std::string path = kept->model->path();
    kept.reset();
    LOG(info, "{} is freed", path);
  }
}

}  // namespace sluice::cli
