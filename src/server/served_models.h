// The models that answer: the stable pool's, and a canary's where it is in this process. Each may be replaced
// while answers of it run: whoever answers holds it, and so it goes after the last of them.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/served_model.h"
#include "server/traffic/canary.h"

namespace sluice {

// Any thread.
class ServedModels {
 public:
  // Null: there is none.
  std::shared_ptr<ServedModel> get(Pool pool = Pool::stable) const {
    std::lock_guard lock(mutex_);
    return models_[size_t(pool)];
  }
  // Both of one moment, by Pool.
  std::array<std::shared_ptr<ServedModel>, 2> both() const {
    std::lock_guard lock(mutex_);
    return models_;
  }
  void set(Pool pool, std::shared_ptr<ServedModel> model);
  // Tells the engines of what was enqueued, also those of models that have been replaced: a request may have
  // been on its way to one.
  void ring() const;

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<ServedModel>, 2> models_;  // by Pool; guarded by mutex_
  std::vector<std::weak_ptr<ServedModel>> replaced_;    // guarded by mutex_
};

}  // namespace sluice
