// A model of any shape with made-up weights, for measuring speed without a file.
#pragma once

#include <memory>
#include <string>

#include "model/checkpoint.h"

namespace sluice::cli {

// "NAME[:FORMAT]": a known shape (the message of an error lists them) and int4 (default), int8, bf16, f16 or
// f32. Integer weights have groups of 32, int4 with minima, as Q4_1 and Q8_0 have.
Result<std::unique_ptr<Checkpoint>> make_dummy_checkpoint(const std::string& shape);

}  // namespace sluice::cli
