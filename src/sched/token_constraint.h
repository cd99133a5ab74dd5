// What one answer is held to, token by token: a grammar, as the engine sees it. Made by the engine's client;
// used by one thread at a time, never the engine's own.
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  enum class State : uint8_t {
    kOpen,    // the mask holds what may come next
    kOver,    // complete: nothing but an end
    kFailed,  // it cannot be followed further; the mask says nothing
  };
  // Takes in the id that was sampled (-1: none has been yet), and fills [(V + 31) / 32] words with the ids that
  // may follow, end ids included where the answer may end.
  virtual State advance(int32_t sampled, std::span<uint32_t> mask) = 0;
};

}  // namespace sluice
