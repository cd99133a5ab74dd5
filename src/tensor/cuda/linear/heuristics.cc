#include "tensor/cuda/linear/heuristics.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cuda {

namespace {

constexpr int64_t kRingBytes = 208 * 1024;

}  // namespace

int64_t stream_stage_bytes(const StreamConfig& c) { return int64_t(c.tile + c.rows) * c.depth * 2; }
int64_t stream_shared_bytes(const StreamConfig& c, int compiled_tile) {
  constexpr int64_t kBarriersAndAlignment = 2048, kRowBytes = 128;
  // The tensor cores read a compiled tile's rows, so the last stage is followed by as many.
  return kBarriersAndAlignment + c.stages * stream_stage_bytes(c) + (compiled_tile - c.tile) * kRowBytes;
}

LinearChoice choose_linear(const LinearShape& shape, int multiprocessors) {
  if (shape.m > 128) return {};
  StreamConfig c;
  for (int rows : {128, 64, 32, 16, 8})
    if (shape.m <= rows) c.rows = rows;
  c.tile = c.rows <= 16 ? 64 : 128;
  c.depth = c.rows <= 16 ? 128 : 64;
  c.stages = int(std::min<int64_t>(32, kRingBytes / stream_stage_bytes(c)));
  return {LinearChoice::Way::stream, c};
}

std::string LinearChoice::text() const {
  if (way == Way::cublaslt) return "cublaslt";
  return fmt::format("stream: {} rows, {}tile {} x {}, {} peers, {} stages{}", stream.rows,
                     stream.whole_tiles ? "whole " : "", stream.tile, stream.depth, stream.peers,
                     stream.stages,
                     stream.take_turns ? ", in turn" : "");
}

}  // namespace sluice::cuda
