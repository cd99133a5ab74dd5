// A model of a known shape with made-up weights and a made-up vocabulary, for measuring speed where no file is
// at hand. open_checkpoint makes it for paths "dummy:SHAPE". Nothing of it is kept in memory: rows are computed
// as they are packed, or by the device itself (RowSource::synthetic).
#pragma once

#include <memory>
#include <string>

#include "model/checkpoint.h"

namespace sluice {

inline constexpr std::string_view kDummyPrefix = "dummy:";

// The architecture of the shape "null": load_model puts an engine behind it that computes nothing
// (engine/null_engine.h). Elsewhere it is a llama of one small layer.
inline constexpr const char* kNullArchitecture = "null";

// "NAME[:FORMAT]": a known shape (the message of an error lists them) and int4 (default), awq, int8, w8a8, fp8,
// bf16, f16 or f32. Integer weights have groups of 32, int4 with minima, as Q4_1 and Q8_0 have; awq is
// int4 in groups of 128 (64, 32 where those divide the columns), w8a8 (int8) and
// fp8 have a scale for each row: all three
// with embedding and head in bf16. Norms are 1, biases 0, and matrices have a
// deviation of 1 / sqrt(columns), so that activations stay near 1 through any number of layers. The vocabulary
// (side file tokenizer.json) has every byte, then words; no token ends an answer. The chat template names each
// message's role and is otherwise plain text.
Result<std::unique_ptr<Checkpoint>> make_dummy_checkpoint(const std::string& shape);

}  // namespace sluice
