// Which kernels run, and how a product is split over the team.
#include "tensor/cpu/linear/linear.h"

#include <algorithm>

#include "tensor/cpu/linear/kernels.h"

namespace sluice::cpu {
namespace {

struct Kernels {
  QuantizeFn quantize;
  TilesFn tiles;
  SplitFn split;  // null: no part has `pairs`
};

// The list of what exists.
constexpr Kernels kKernels[] = {
    /* scalar      */ {quantize_scalar, tiles_scalar, nullptr},
#if defined(__x86_64__)
    /* avx2        */ {quantize_avx2, tiles_avx2, nullptr},
    /* avx512_vnni */ {quantize_avx512, tiles_avx512_vnni, nullptr},
    /* amx         */ {quantize_avx512, tiles_amx, split_amx},
#endif
};

// Elements of x below which the caller quantizes alone, sooner than a team would be at work (about 2 µs).
constexpr int64_t kAloneElements = 8 << 10;

// Tiles are handed out in pieces (team.h, run_tasks): enough of them that nobody waits long for the last one or
// for a member whose core is busy elsewhere, and none so short that handing it out shows.
constexpr int64_t kPiecesPerMember = 6;
constexpr int64_t kPieceBytes = 24 << 10;

// Rows of x are taken in chunks whose quantized form stays in the second-level cache while all tiles pass by.
constexpr int64_t kChunkBytes = 384 << 10;

struct Range {
  int64_t begin, end;
};

const PackedHeader& header_of(const Weight::Part& part) {
  const auto& h = *part.data.as<const PackedHeader>();
  CHECK(h.magic == PackedHeader::kMagic && h.rows == part.rows);
  return h;
}

// Tiles [begin, end) of the weight, counted through its parts, times a chunk of rows of x.
void run_tiles(const LinearArgs& a, const Kernels& kernels, const QuantRows& xq, const SplitRows& xs,
               Range rows, int64_t begin, int64_t end) {
  int64_t first = 0;
  for (const Weight::Part& part : a.w.parts) {
    const PackedHeader& h = header_of(part);
    const int64_t b = std::max<int64_t>(begin - first, 0), e = std::min(end - first, h.tiles);
    first += h.tiles;
    if (b >= e) continue;
    Job job{};
    job.header = &h;
    job.tiles = part.data.as<const std::byte>() + kHeaderBytes;
    job.xq = xq;
    job.xs = xs;
    job.x = a.x.row<const float>(0);
    job.x_stride = a.x.stride;
    job.m_begin = rows.begin;
    job.m_end = rows.end;
    job.out = a.out.row<float>(0) + part.row_begin;
    job.out_stride = a.out.stride;
    job.bias = a.bias ? a.bias + part.row_begin : nullptr;
    kernels.tiles(job, b, e);
  }
}

// Runs f(first, last) over rows of x: alone if they are few; in whole panels, which have a quicker way, if they
// are many.
template <typename F>
void for_rows(Team& team, const LinearArgs& a, const F& f) {
  const int64_t m = a.x.rows;
  if (m == 1 || m * a.x.cols < kAloneElements) return f(0, m);
  const int64_t unit = m >= 2 * kPanelRows * team.size() ? kPanelRows : 1, units = (m + unit - 1) / unit;
  const int64_t tasks = std::min<int64_t>(units, team.size() * 2);
  team.run_tasks(int(tasks), [&](int task, int) {
    f(units * task / tasks * unit, std::min(units * (task + 1) / tasks * unit, m));
  });
}

std::byte* align(std::byte* p) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64);
}

int64_t whole_panels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows * kPanelRows; }

}  // namespace

size_t linear_scratch_bytes(Isa isa, int64_t max_rows, int64_t max_columns) {
  int64_t row = kPlanes * quant_row_bytes(x_groups(max_columns));
  if (kKernels[size_t(isa)].split) row += split_row_bytes(split_cols(max_columns));
  return size_t(whole_panels(max_rows) * row) + 64;
}

void linear(Team& team, Isa isa, const LinearArgs& a, std::byte* scratch) {
  CHECK(a.x.dtype == DType::f32 && a.out.dtype == DType::f32);
  CHECK(a.x.cols == a.w.cols && a.out.cols == a.w.rows && a.x.rows == a.out.rows);
  const int64_t m = a.x.rows;
  if (m == 0) return;
  const Kernels& kernels = kKernels[size_t(isa)];
  int64_t tiles = 0;
  bool integers = false, pairs = false;
  for (const Weight::Part& part : a.w.parts) {
    tiles += header_of(part).tiles;
    integers |= !part.format.is_float();
    pairs |= header_of(part).pairs;
  }
  const float* x = a.x.row<const float>(0);
  const int64_t groups = x_groups(a.w.cols);
  const QuantRows quantized{align(scratch), groups, m == 1 ? kPlanes : kPanelRows};
  const int64_t plane_bytes = whole_panels(m * kPlanes) * quant_row_bytes(groups);
  const SplitRows split{quantized.base + plane_bytes, split_cols(a.w.cols)};
  if (integers) {
    for_rows(team, a, [&](int64_t begin, int64_t end) {
      kernels.quantize(x, a.x.stride, a.x.cols, quantized, begin, end);
    });
  }
  if (pairs) {
    for_rows(team, a,
             [&](int64_t begin, int64_t end) { kernels.split(x, a.x.stride, a.x.cols, split, begin, end); });
  }

  const int64_t row_bytes = pairs ? split_row_bytes(split.cols) : kPlanes * quant_row_bytes(groups);
  const int64_t chunk = std::max<int64_t>(kChunkBytes / row_bytes / kPanelRows, 2) * kPanelRows;
  const int64_t chunks = (m + chunk - 1) / chunk;
  const int64_t by_bytes = int64_t(a.w.bytes()) * std::min(m, chunk) / kPieceBytes;
  const int64_t wanted = std::clamp<int64_t>(by_bytes, 1, team.size() * kPiecesPerMember);
  const int64_t piece = ((tiles + wanted - 1) / wanted + 1) / 2 * 2, pieces = (tiles + piece - 1) / piece;
  team.run_tasks(int(chunks * pieces), [&](int task, int) {
    const int64_t begin = task / pieces * chunk, tile = task % pieces * piece;
    run_tiles(a, kernels, quantized, split, {begin, std::min(begin + chunk, m)}, tile,
              std::min(tile + piece, tiles));
  });
}

}  // namespace sluice::cpu
