// The client's side of a stream.
#include "engine/engine.h"
#include "engine/engine_door.h"

namespace sluice {

bool RequestStream::pop(TokenEvent& out) {
  bool got = events_.pop(out);
  if (!got) {
    // Dry: ask for a notification, then look again, since the engine may have pushed just before it saw that.
    notified_.exchange(false);
    got = events_.pop(out);
  }
  if (got && paused_.load() && paused_.exchange(false)) door_->bell.ring();
  return got;
}

void RequestStream::cancel(FinishReason why) {
  FinishReason none = FinishReason::none;
  if (!unwanted_.compare_exchange_strong(none, why)) return;
  door_->cancels.fetch_add(1);
  door_->bell.ring();
}

}  // namespace sluice
