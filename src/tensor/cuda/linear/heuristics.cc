#include "tensor/cuda/linear/heuristics.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cuda {

// Ring of the streaming kernel. Two blocks fit on a multiprocessor (227 KB), so that the next product's first
// stages are read while this one ends.
constexpr int64_t kRingBytes = 108 * 1024;

int64_t stream_stage_bytes(const StreamConfig& c) { return int64_t(c.tile + c.rows) * c.depth * 2; }
int64_t stream_shared_bytes(const StreamConfig& c) {
  constexpr int64_t kAlignment = 1024, kBarriers = 1024;
  return kAlignment + c.stages * stream_stage_bytes(c) + kBarriers;
}

LinearChoice choose_linear(const LinearShape& shape, int multiprocessors) {
  if (shape.m > 128) return {};
  StreamConfig c;
  for (int rows : {128, 64, 32, 16, 8})
    if (shape.m <= rows) c.rows = rows;
  c.tile = c.rows <= 16 ? 64 : 128;
  c.depth = 64;
  c.multiprocessors = multiprocessors;
  c.stages = int(std::min<int64_t>(32, kRingBytes / stream_stage_bytes(c)));
  c.prefetch = 16;
  return {LinearChoice::Way::stream, c};
}

std::string LinearChoice::text() const {
  if (way == Way::cublaslt) return "cublaslt";
  return fmt::format("stream: {} rows, tile {} x {}, {} stages, {} ahead", stream.rows, stream.tile,
                     stream.depth, stream.stages, stream.prefetch);
}

}  // namespace sluice::cuda
