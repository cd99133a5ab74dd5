#include "tensor/cuda/linear/int4_choice.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cuda {
namespace {

constexpr int64_t kMostShared = 227 * 1024, kStageAlignment = 128;

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Int4Layout layout_of(const Int4Shape& s) { return {s.n, s.k, s.group}; }

// Clusters that find room at once, of blocks that fill a multiprocessor's shared memory: 30 of four on 132.
int64_t places(int cluster, int multiprocessors) {
  return cluster == 4 ? multiprocessors * 10 / 44 : multiprocessors / cluster;
}

// The bytes that a multiprocessor takes in, and what a product's end costs: the table in README.md.
double cost_us(const Int4StreamConfig& c, const Int4Shape& s, int multiprocessors) {
  constexpr double kMemory = 4.5e6, kMultiprocessor = 60e3;
  const Int4Layout layout = layout_of(s);
  const int64_t clusters = int4_stream_clusters(c, s, multiprocessors);
  const int64_t rounds = up(up(layout.panels(), c.tile_panels()), clusters);
  const double bytes = double(rounds * c.tile_panels() * layout.panel_bytes()) / c.cluster;
  const double input = double(s.m * s.k * 2) / c.cluster;
  const double ends = 0.15 * double(rounds) + (c.cluster > 1 ? 2 : 0);
  return std::max((bytes + input) / kMultiprocessor, bytes * double(clusters * c.cluster) / kMemory) +
         input / kMultiprocessor + ends;
}

}  // namespace

int64_t int4_stage_bytes(const Int4StreamConfig& c, const Int4Shape& s) {
  return up(int64_t(c.panels) * c.stage_blocks * layout_of(s).block_bytes(), kStageAlignment) * kStageAlignment;
}

int64_t int4_stream_clusters(const Int4StreamConfig& c, const Int4Shape& s, int multiprocessors) {
  return std::min(up(layout_of(s).panels(), c.tile_panels()), places(c.cluster, multiprocessors));
}

int64_t int4_part_bytes(const Int4StreamConfig& c) {
  return int64_t(c.slices) * c.tile_panels() * c.rows * kPanelRows * 4;
}

int64_t int4_shared_bytes(const Int4StreamConfig& c, const Int4Shape& s, int multiprocessors) {
  const Int4Layout layout = layout_of(s);
  const int64_t barriers = kInt4BarrierBytes + kStageAlignment;
  const int64_t tiles = up(layout.panels(), c.tile_panels());
  const int64_t parts = int4_part_bytes(c) * (tiles > int4_stream_clusters(c, s, multiprocessors) ? 2 : 1);
  const int64_t units = up(up(layout.blocks(), c.stage_blocks), c.cluster);
  const int64_t pitch = units * c.stage_blocks * layout.block_cols() * 2 + 144;
  return barriers + parts + up(s.m * pitch, kStageAlignment) * kStageAlignment +
         int64_t(c.warps()) * c.stages * int4_stage_bytes(c, s);
}

Int4StreamConfig with_stages(Int4StreamConfig c, const Int4Shape& s, int multiprocessors,
                             int64_t shared_bytes) {
  c.stages = 0;
  const int64_t rest = shared_bytes - int4_shared_bytes(c, s, multiprocessors);
  const int64_t fit = rest / (c.warps() * int4_stage_bytes(c, s));
  c.stages = rest < 0 ? 0 : int(std::min<int64_t>(kMostInt4Stages, fit));
  return c;
}

// Eight warps or nearly: more of them take longer to start and to join than they save.
Int4StreamConfig choose_int4_stream(const Int4Shape& s, int multiprocessors) {
  Int4StreamConfig best;
  double best_us = 0;
  const int rows = s.m <= 8 ? 8 : 16;
  const int64_t blocks = layout_of(s).blocks();
  for (const int cluster : {1, 2, 4})
    for (const int panels : {2, 3})
      for (const int warp_rows : {1, 2, 3, 4, 7, 8})
        for (const int slices : {8, 4, 2, 1}) {
          if (warp_rows * slices > 8 || warp_rows * slices < 6 || warp_rows * panels % cluster != 0) continue;
          Int4StreamConfig c{.rows = rows,
                             .panels = panels,
                             .warp_rows = warp_rows,
                             .slices = slices,
                             .cluster = cluster,
                             .stage_blocks = 1};
          while (c.stage_blocks < 4 && c.stage_blocks * 2 * slices * cluster <= blocks) c.stage_blocks *= 2;
          c = with_stages(c, s, multiprocessors, kMostShared);
          for (; c.stages < 2 && c.stage_blocks > 1; c = with_stages(c, s, multiprocessors, kMostShared))
            c.stage_blocks /= 2;
          if (c.stages == 0) continue;
          const double us = cost_us(c, s, multiprocessors);
          if (best.stages == 0 || us < best_us) best = c, best_us = us;
        }
  return best;
}

// A stage takes 0.36 us and 4.2 ns a row of x, more where groups are small; joining the sums of a cluster takes
// 4 us. Of clusters of 4, no more than 30 find room at once.
Int4GemmConfig choose_int4_gemm(const Int4Shape& s, bool integer_zeros, int multiprocessors) {
  Int4GemmConfig best;
  double best_us = 0;
  for (const int columns : {16, 32, 64, 96, 128, 160})
    for (const int cluster : {1, 2, 4}) {
      if (columns / 8 % cluster != 0 || (columns == 16 && s.m > 16) ||
          (s.group != 128 && columns != 32 && columns != 128))
        continue;
      const int64_t tiles = up(s.n, kInt4GemmTileRows) * up(s.m, columns);
      const int64_t rounds = up(tiles, places(cluster, multiprocessors)),
                    stages = up(up(s.k, kInt4GemmDepth), cluster);
      if (cluster > 1 && rounds > 1) continue;
      const double stage_us = 0.36 + 0.0042 * columns + 0.1 * (128 / s.group - 1);
      const double us = double(rounds) * (double(stages) * stage_us + 1) + (cluster > 1 ? 4 : 0);
      if (best.columns == 0 || us < best_us) best = {columns, cluster, !integer_zeros}, best_us = us;
    }
  return best;
}

// Beyond the most rows, weights are turned to bf16 once rather than for every tile of rows.
constexpr int64_t kFewRows = 8, kMostStreamRows = 16, kMostGemmRows = 1024;

Int4Choice choose_int4(const Int4Shape& s, bool integer_zeros, bool copied, int multiprocessors) {
  Int4Choice choice;
  if (copied && s.m > kMostRowsBesideCopy) return choice;
  const bool tiles_of_16 = integer_zeros && s.group == 128;
  if (s.m <= (tiles_of_16 ? kFewRows : kMostStreamRows)) {
    choice.stream = choose_int4_stream(s, multiprocessors);
    if (choice.stream.stages > 0) {
      choice.way = Int4Choice::Way::stream;
      return choice;
    }
  }
  if ((integer_zeros || s.group == 32) && s.m <= kMostGemmRows) {
    choice.way = Int4Choice::Way::gemm;
    choice.gemm = choose_int4_gemm(s, integer_zeros, multiprocessors);
  }
  return choice;
}

std::string Int4Choice::text() const {
  return way == Way::stream ? stream.text() : way == Way::gemm ? gemm.text() : "as bf16 by cublaslt";
}

std::string Int4StreamConfig::text() const {
  return fmt::format("stream: {} rows, {} x {} panels, {} slices, clusters of {}, {} stages of {} blocks", rows,
                     warp_rows, panels, slices, cluster, stages, stage_blocks);
}

std::string Int4GemmConfig::text() const {
  return fmt::format("gemm: tiles of {} rows, clusters of {}", columns, cluster);
}

}  // namespace sluice::cuda
