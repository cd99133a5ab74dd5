#include "engine/grammar_constraint.h"

namespace sluice {
namespace {

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const Grammar> grammar, const GrammarLimits& limits)
      : matcher_(std::move(grammar), limits) {}

  State advance(int32_t sampled, std::span<uint32_t> mask) override {
    if (sampled >= 0 && !matcher_.accept(sampled)) return State::kFailed;
    switch (matcher_.fill(mask)) {
      case GrammarMatcher::State::kOpen:
        return State::kOpen;
      case GrammarMatcher::State::kOver:
        return State::kOver;
      case GrammarMatcher::State::kFailed:
        break;
    }
    return State::kFailed;
  }

 private:
  GrammarMatcher matcher_;
};

}  // namespace

std::shared_ptr<TokenConstraint> constraint_of(std::shared_ptr<const Grammar> grammar,
                                               const GrammarLimits& limits) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), limits);
}

}  // namespace sluice
