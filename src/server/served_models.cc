#include "server/served_models.h"

namespace sluice {

void ServedModels::set(std::shared_ptr<ServedModel> model) {
  std::lock_guard lock(mutex_);
  std::erase_if(replaced_, [](const auto& gone) { return gone.expired(); });
  if (model_ != nullptr) replaced_.push_back(model_);
  model_.swap(model);
}

void ServedModels::ring() const {
  std::lock_guard lock(mutex_);
  if (model_ != nullptr) model_->engine().ring();
  for (const auto& replaced : replaced_)
    if (const auto model = replaced.lock()) model->engine().ring();
}

}  // namespace sluice
