// A grammar as what the engine holds an answer to.
#pragma once

#include <memory>

#include "sched/token_constraint.h"
#include "text/grammar.h"

namespace sluice {

// For one answer. Any thread.
std::shared_ptr<TokenConstraint> constraint_of(std::shared_ptr<const Grammar> grammar,
                                               const GrammarLimits& limits);

}  // namespace sluice
