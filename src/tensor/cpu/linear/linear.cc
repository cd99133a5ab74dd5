// Which kernels run, and how a product is split over the team.
#include "tensor/cpu/linear/linear.h"

#include <algorithm>
#include <utility>

#include "tensor/cpu/linear/kernels.h"

namespace sluice::cpu {
namespace {

struct Kernels {
  QuantizeFn quantize;
  TilesFn tiles;
  SplitFn split;             // null: no part has `pairs`
  TakesWordsFn takes_words;  // null: none does
};

// The list of what exists.
constexpr Kernels kKernels[] = {
    /* scalar      */ {quantize_scalar, tiles_scalar, nullptr, nullptr},
#if defined(__x86_64__)
    /* avx2        */ {quantize_avx2, tiles_avx2, nullptr, takes_words_avx2},
    /* avx512_vnni */ {quantize_avx512, tiles_avx512_vnni, nullptr, nullptr},
    /* amx         */ {quantize_avx512, tiles_amx, split_amx, nullptr},
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

// One product wants x both as planes and as words only below this many rows (parts of a weight may differ).
constexpr int64_t kBothFormsBelow = 16;

struct Range {
  int64_t begin, end;
};

const PackedHeader& header_of(const Weight::Part& part) {
  const auto& h = *part.data.as<const PackedHeader>();
  CHECK(h.magic == PackedHeader::kMagic && h.rows == part.rows);
  return h;
}

// x in the forms that the weight's parts want.
struct Forms {
  QuantRows planes;
  QuantRows words;
  SplitRows split;
};

bool takes_words(const Kernels& kernels, const PackedHeader& h, int64_t m) {
  return kernels.takes_words && h.group != 0 && kernels.takes_words(h, m);
}

// Tiles [begin, end) of the weight, counted through its parts, times a chunk of rows of x.
void run_tiles(const LinearArgs& a, const Kernels& kernels, const Forms& forms, Range rows, int64_t begin,
               int64_t end) {
  int64_t first = 0;
  for (const Weight::Part& part : a.w.parts) {
    const PackedHeader& h = header_of(part);
    const int64_t b = std::max<int64_t>(begin - first, 0), e = std::min(end - first, h.tiles);
    first += h.tiles;
    if (b >= e) continue;
    Job job{};
    job.header = &h;
    job.tiles = part.data.as<const std::byte>() + kHeaderBytes;
    job.xq = takes_words(kernels, h, a.x.rows) ? forms.words : forms.planes;
    job.xs = forms.split;
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
  const int64_t quant_row = kPlanes * quant_row_bytes(x_groups(max_columns));
  int64_t row = quant_row;
  if (kKernels[size_t(isa)].split) row += split_row_bytes(split_cols(max_columns));
  const int64_t words = kKernels[size_t(isa)].takes_words ? whole_panels(kBothFormsBelow) * quant_row : 0;
  return size_t(whole_panels(max_rows) * row + words) + 64;
}

void linear(Team& team, Isa isa, const LinearArgs& a, std::byte* scratch) {
  CHECK(a.x.dtype == DType::f32 && a.out.dtype == DType::f32);
  CHECK(a.x.cols == a.w.cols && a.out.cols == a.w.rows && a.x.rows == a.out.rows);
  const int64_t m = a.x.rows;
  if (m == 0) return;
  const Kernels& kernels = kKernels[size_t(isa)];
  int64_t tiles = 0;
  bool planes = false, words = false, pairs = false;
  for (const Weight::Part& part : a.w.parts) {
    const PackedHeader& h = header_of(part);
    tiles += h.tiles;
    const bool as_words = takes_words(kernels, h, m);
    words |= as_words;
    planes |= h.group != 0 && !as_words;
    pairs |= h.pairs;
  }
  CHECK(!(planes && words) || m < kBothFormsBelow);
  const float* x = a.x.row<const float>(0);
  const int64_t groups = x_groups(a.w.cols), panel = m == 1 ? kPlanes : kPanelRows;
  const int64_t form_bytes = whole_panels(m * kPlanes) * quant_row_bytes(groups);
  std::byte* base = align(scratch);
  Forms forms{};
  forms.planes = {base, groups, panel, false};
  forms.words = {planes ? base + form_bytes : base, groups, panel, true};
  forms.split = {base + form_bytes, split_cols(a.w.cols)};
  for (const auto& [wanted, form] : {std::pair{planes, &forms.planes}, std::pair{words, &forms.words}}) {
    if (!wanted) continue;
    for_rows(team, a,
             [&](int64_t begin, int64_t end) { kernels.quantize(x, a.x.stride, a.x.cols, *form, begin, end); });
  }
  if (pairs) {
    for_rows(team, a, [&](int64_t begin, int64_t end) {
      kernels.split(x, a.x.stride, a.x.cols, forms.split, begin, end);
    });
  }

  const int64_t row_bytes = pairs ? split_row_bytes(forms.split.cols) : kPlanes * quant_row_bytes(groups);
  const int64_t chunk = std::max<int64_t>(kChunkBytes / row_bytes / kPanelRows, 2) * kPanelRows;
  const int64_t chunks = (m + chunk - 1) / chunk;
  const int64_t by_bytes = int64_t(a.w.bytes()) * std::min(m, chunk) / kPieceBytes;
  const int64_t wanted = std::clamp<int64_t>(by_bytes, 1, team.size() * kPiecesPerMember);
  const int64_t piece = ((tiles + wanted - 1) / wanted + 1) / 2 * 2, pieces = (tiles + piece - 1) / piece;
  team.run_tasks(int(chunks * pieces), [&](int task, int) {
    const int64_t begin = task / pieces * chunk, tile = task % pieces * piece;
    run_tiles(a, kernels, forms, {begin, std::min(begin + chunk, m)}, tile, std::min(tile + piece, tiles));
  });
}

}  // namespace sluice::cpu
