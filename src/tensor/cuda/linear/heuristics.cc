#include "tensor/cuda/linear/heuristics.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cuda {

namespace {

// One block on a multiprocessor, with as many bytes under way as it can hold: the block of the next product
// begins where one ends. Two blocks of half the size were slower: what the second prefetches only slows the
// first.
constexpr int64_t kRingBytes = 206 * 1024;

// What memory delivers, and what one multiprocessor takes in, bytes a us.
constexpr double kMemory = 4.5e6, kMultiprocessor = 65e3;

// Tiles that each belong to one thread block: as few rounds over the multiprocessors as a tile's height allows,
// and then as low as that number of rounds allows.
int whole_tile(int64_t n, int multiprocessors) {
  const int64_t eights = (n + 7) / 8, share = (eights + multiprocessors - 1) / multiprocessors;
  const int64_t rounds = (share * 8 + kStreamTile - 1) / kStreamTile;
  return int((share + rounds - 1) / rounds * 8);
}

double whole_us(const LinearShape& s, int rows, int tile, int multiprocessors) {
  const int64_t tiles = (s.n + tile - 1) / tile, rounds = (tiles + multiprocessors - 1) / multiprocessors;
  const double bytes = double(s.n) * double(s.k) * 2;
  const double uneven = double(rounds * tile * multiprocessors) / double(s.n) - 1;
  // A multiprocessor that has more than its share gets it faster while others have none: that is half of it.
  return std::max(bytes / kMemory * (1 + uneven / 2),
                  double(rounds * (tile + rows) * s.k * 2) / kMultiprocessor);
}

// Shares of the same size, but tiles to join: 1.7 us at the end of a product, more where many blocks share a
// tile.
double shared_us(const LinearShape& s, int multiprocessors) {
  const int64_t tiles = (s.n + kStreamTile - 1) / kStreamTile, sharers = multiprocessors / tiles + 1;
  return double(s.n) * double(s.k) * 2 / kMemory + 1.7 + 0.7 * double(std::max<int64_t>(0, sharers - 3));
}

}  // namespace

int64_t stream_stage_bytes(const StreamConfig& c) { return int64_t(c.tile + c.rows) * c.depth * 2; }
int64_t stream_shared_bytes(const StreamConfig& c) {
  constexpr int64_t kBarriersAndAlignment = 2048, kRowBytes = 128;
  // The tensor cores read a full tile whatever its height, so the last stage is followed by what that lacks.
  return kBarriersAndAlignment + c.stages * stream_stage_bytes(c) + (kStreamTile - c.tile) * kRowBytes;
}

LinearChoice choose_linear(const LinearShape& s, int multiprocessors) {
  if (s.m > 32) return {};  // cuBLASLt is faster: README.md
  StreamConfig c;
  c.rows = s.m <= 8 ? 8 : s.m <= 16 ? 16 : 32;
  c.tile = whole_tile(s.n, multiprocessors);
  c.whole_tiles = whole_us(s, c.rows, c.tile, multiprocessors) < shared_us(s, multiprocessors);
  c.depth = s.k % 64 ? 64 : c.whole_tiles ? 256 : 128;
  if (!c.whole_tiles) c.tile = kStreamTile;
  c.stages = int(std::min<int64_t>(kMaxStreamStages, kRingBytes / stream_stage_bytes(c)));
  return {LinearChoice::Way::stream, c};
}

std::string LinearChoice::text() const {
  if (way == Way::cublaslt) return "cublaslt";
  return fmt::format("stream: {} rows, {}tile {} x {}, {} stages", stream.rows,
                     stream.whole_tiles ? "whole " : "", stream.tile, stream.depth, stream.stages);
}

}  // namespace sluice::cuda
