#include "server/served_models.h"

namespace sluice {

void ServedModels::set(Pool pool, std::shared_ptr<ServedModel> model) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<ServedModel>& place = models_[size_t(pool)];
  std::erase_if(replaced_, [](const auto& gone) { return gone.expired(); });
  if (place != nullptr) replaced_.push_back(place);
  place.swap(model);
}

void ServedModels::ring() const {
  std::lock_guard lock(mutex_);
  for (const auto& model : models_)
    if (model != nullptr) model->engine().ring();
  for (const auto& replaced : replaced_)
    if (const auto model = replaced.lock()) model->engine().ring();
}

}  // namespace sluice
