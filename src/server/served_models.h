// The model that answers. It may be replaced while answers of it run: whoever answers holds it, and so it goes
// after the last of them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "engine/served_model.h"

namespace sluice {

// Any thread.
class ServedModels {
 public:
  // Null: there is none yet.
  std::shared_ptr<ServedModel> get() const {
    std::lock_guard lock(mutex_);
    return model_;
  }
  void set(std::shared_ptr<ServedModel> model);
  // Tells the engines of what was enqueued, also those of models that have been replaced: a request may have
  // been on its way to one.
  void ring() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<ServedModel> model_;                // guarded by mutex_
  std::vector<std::weak_ptr<ServedModel>> replaced_;  // guarded by mutex_
};

}  // namespace sluice
