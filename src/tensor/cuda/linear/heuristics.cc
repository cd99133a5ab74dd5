#include "tensor/cuda/linear/heuristics.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cuda {

namespace {

// One block on a multiprocessor, with as many bytes under way as it can hold: the block of the next product
// begins where one ends. Two blocks of half the size were slower: what the second prefetches only slows the
// first.
constexpr int64_t kRingBytes = 206 * 1024;

// Of the ring, what is asked for before x: about what memory delivers until the kernel in front of a product,
// which is a small one, is done.
constexpr int64_t kEarlyBytes = 112 * 1024;

// What memory delivers, and what one multiprocessor takes in, bytes a us.
constexpr double kMemory = 4.5e6, kMultiprocessor = 65e3;

// Tiles that each belong to one thread block: as few rounds over the multiprocessors as a tile's height allows,
// and then as low as that number of rounds allows.
int whole_tile(int64_t n, int most, int multiprocessors) {
  const int64_t eights = (n + 7) / 8, share = (eights + multiprocessors - 1) / multiprocessors;
  const int64_t rounds = (share * 8 + most - 1) / most;
  return int((share + rounds - 1) / rounds * 8);
}

double weight_bytes(const LinearShape& s) { return double(s.n) * double(s.k) * factor_bytes(s.factors); }

double whole_us(const LinearShape& s, int rows, int tile, int multiprocessors) {
  const int64_t tiles = (s.n + tile - 1) / tile, rounds = (tiles + multiprocessors - 1) / multiprocessors;
  const double uneven = double(rounds * tile * multiprocessors) / double(s.n) - 1;
  // A multiprocessor that has more than its share gets it faster while others have none: that is half of it.
  return std::max(weight_bytes(s) / kMemory * (1 + uneven / 2),
                  double(rounds * (tile + rows) * s.k * factor_bytes(s.factors)) / kMultiprocessor);
}

// Shares of the same size, but tiles to join: 1.7 us at the end of a product, more where many blocks share a
// tile, or where a tile's sums are many.
double shared_us(const LinearShape& s, int rows, int multiprocessors) {
  const int64_t tile = stream_tile(rows), tiles = (s.n + tile - 1) / tile,
                sharers = multiprocessors / tiles + 1;
  const double joins = 1.7 + 0.7 * double(std::max<int64_t>(0, sharers - 3)) + (rows > 32 ? rows / 32 : 0);
  return std::max(weight_bytes(s) / kMemory,
                  weight_bytes(s) / multiprocessors * (1 + double(rows) / double(tile)) / kMultiprocessor) +
         joins;
}

// Where cuBLASLt is faster: README.md. Its fp8 product with a scale for each row does not split K, which leaves
// multiprocessors without work where w is wide and low.
bool streams(const LinearShape& s) {
  return s.m <= 32 || (s.m <= 128 && s.factors == Factors::fp8 && s.k >= 2 * s.n);
}

// cuBLASLt's fp8 products without scales per row have algorithms that share K out. Those with them have tiles
// of 128 x 128: where these leave multiprocessors idle at the end, sharing is worth the kernel that scales.
bool scaled_behind(const LinearShape& s, int multiprocessors) {
  if (s.factors != Factors::fp8 || s.m <= 128 || s.m > kMostUnscaledRows || s.k < s.n) return false;
  const int64_t tiles = (s.m + 127) / 128 * ((s.n + 127) / 128),
                rounds = (tiles + multiprocessors - 1) / multiprocessors;
  return tiles * 5 < rounds * multiprocessors * 4;
}

}  // namespace

int64_t stream_stage_bytes(const StreamConfig& c) {
  return int64_t(c.tile + c.rows) * c.depth * factor_bytes(c.factors);
}
int64_t stream_shared_bytes(const StreamConfig& c) {
  constexpr int64_t kBarriersAndAlignment = 2048, kRowBytes = 128;
  // The tensor cores read a full tile whatever its height, so the last stage is followed by what that lacks.
  return kBarriersAndAlignment + c.stages * stream_stage_bytes(c) + (stream_tile(c.rows) - c.tile) * kRowBytes;
}

StreamConfig stream_config(const LinearShape& s, bool whole_tiles, int multiprocessors) {
  StreamConfig c;
  c.factors = s.factors;
  c.rows = s.m <= 8 ? 8 : s.m <= 16 ? 16 : s.m <= 32 ? 32 : s.m <= 64 ? 64 : 128;
  const int most = stream_tile(c.rows), box = 128 / factor_bytes(s.factors);
  c.whole_tiles = whole_tiles;
  c.tile = whole_tiles ? whole_tile(s.n, most, multiprocessors) : most;
  // 128 rows: two boxes' sums beside those of the tile are more registers than there are.
  c.depth = s.k % box || c.rows > 64 ? box : c.rows > 32 || !whole_tiles ? 2 * box : 4 * box;
  c.stages = int(std::min<int64_t>(kMaxStreamStages, kRingBytes / stream_stage_bytes(c)));
  c.early_stages = int(std::max<int64_t>(1, kEarlyBytes / stream_stage_bytes(c)));
  return c;
}

LinearChoice choose_linear(const LinearShape& s, int multiprocessors) {
  if (scaled_behind(s, multiprocessors)) return {LinearChoice::Way::cublaslt_unscaled, {}};
  if (!streams(s)) return {};
  StreamConfig c = stream_config(s, true, multiprocessors);
  if (!(whole_us(s, c.rows, c.tile, multiprocessors) < shared_us(s, c.rows, multiprocessors)))
    c = stream_config(s, false, multiprocessors);
  return {LinearChoice::Way::stream, c};
}

std::string LinearChoice::text() const {
  if (way == Way::cublaslt) return "cublaslt";
  if (way == Way::cublaslt_unscaled) return "cublaslt, scaled behind";
  return fmt::format("stream: {} rows, {}tile {} x {}, {} stages", stream.rows,
                     stream.whole_tiles ? "whole " : "", stream.tile, stream.depth, stream.stages);
}

}  // namespace sluice::cuda
