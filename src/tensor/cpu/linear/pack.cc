// Rows of a file into tiles of 16 (layout.h), in parallel over the team, at load.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tensor/cpu/linear/layout.h"
#include "tensor/cpu/linear/linear.h"
#include "tensor/fp8.h"
#include "tensor/half.h"

namespace sluice::cpu {
namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t group_bytes(const PackedHeader& h) {
  return h.group * kTileRows / (h.element == WeightElement::int4 ? 2 : 1);
}

Result<PackedHeader> plan_part(Isa isa, const RowSource& rows, int64_t count) {
  const WeightFormat f = rows.format();
  PackedHeader h{};
  h.magic = PackedHeader::kMagic;
  h.element = f.element;
  h.has_min = f.has_min && !f.is_float();
  h.rows = count;
  h.cols = rows.cols();
  h.tiles = (count + kTileRows - 1) / kTileRows;
  h.max_quant = 255;
  if (f.is_float()) {
    h.pairs = isa == Isa::amx && f.element == WeightElement::bf16;
    h.tile_bytes =
        (h.pairs ? split_cols(h.cols) : h.cols) * kTileRows * (f.element == WeightElement::f32 ? 4 : 2);
    return h;
  }
  // Wider groups become groups of 32 with the scale repeated.
  if (f.group != 16 && (f.group <= 0 || f.group % 32 != 0)) {
    return Error{ErrorCode::kUnsupported, "weights in groups of " + std::to_string(f.group) +
                                              " columns (the CPU kernels want 16 or a multiple of 32)"};
  }
  h.group = f.group == 16 ? 16 : 32;
  h.blocks = int32_t(round_up(h.cols, kBlock) / kBlock);
  return h;
}

void place_parts_of_tile(PackedHeader& h) {
  if (h.group == 0) return;
  const int scale_bytes = kBlock / h.group * kTileRows * (h.scales_f32 ? 4 : 2);
  h.min_offset = scale_bytes;
  h.quant_offset = h.has_min ? 2 * scale_bytes : scale_bytes;
  h.block_bytes = h.quant_offset + int32_t(kBlock / h.group * group_bytes(h));
  h.tile_bytes = int64_t(h.blocks) * h.block_bytes;
}

// Where group g of a tile has its scales, mins and quants.
struct Group {
  std::byte* scales;
  std::byte* mins;
  std::byte* quants;
};

Group group_at(const PackedHeader& h, std::byte* tile, int64_t g) {
  const int per_block = kBlock / h.group;
  std::byte* block = tile + g / per_block * h.block_bytes;
  const int64_t i = g % per_block, scales = i * kTileRows * (h.scales_f32 ? 4 : 2);
  return {block + scales, block + h.min_offset + scales, block + h.quant_offset + i * group_bytes(h)};
}

int64_t group_count(const PackedHeader& h) { return int64_t(h.blocks) * (kBlock / h.group); }

// What a member learned from the rows that it packed.
struct Seen {
  int min_quant = 0;
  int max_quant = 0;
  bool f16_loses = false;
};

// Products such as K-quants' scale·scale have up to 17 bits: rounding them to f16's 11 is an error of 2^-12,
// small beside the activations' 8 bits. Below f16's normal range it would not be: then the part keeps f32.
bool f16_loses(float v) { return !(std::fabs(f16_to_f32(f32_to_f16(v)) - v) <= std::fabs(v) * 0x1p-11f); }

void put_scale(const PackedHeader& h, std::byte* scales, int64_t i, float v) {
  if (h.scales_f32) {
    std::memcpy(scales + i * 4, &v, 4);
  } else {
    const uint16_t bits = f32_to_f16(v);
    std::memcpy(scales + i * 2, &bits, 2);
  }
}

void pack_integer_row(const PackedHeader& h, int file_group, const DecodedRow& row, std::byte* tile, int r,
                      Seen& seen) {
  const int64_t per_scale = h.group == 16 ? 1 : file_group / 32;
  for (int64_t g = 0; g < group_count(h); ++g) {
    const Group group = group_at(h, tile, g);
    const auto from = size_t(g / per_scale);
    const float scale = from < row.scale.size() ? row.scale[from] : 0.f;
    put_scale(h, group.scales, r, scale);
    seen.f16_loses |= f16_loses(scale);
    if (h.has_min) {
      const float min = from < row.min.size() ? row.min[from] : 0.f;
      put_scale(h, group.mins, r, min);
      seen.f16_loses |= f16_loses(min);
    }
  }
  const bool int4 = h.element == WeightElement::int4;
  const int in_group = h.group, half = in_group / 2;
  int lo = seen.min_quant, hi = seen.max_quant;
  for (int64_t g = 0; g * in_group < h.cols; ++g) {
    std::byte* group = group_at(h, tile, g).quants;
    const int8_t* from = row.q.data() + g * in_group;
    const int count = int(std::min<int64_t>(in_group, h.cols - g * in_group));
    for (int k = 0; k < count; ++k) {
      const int q = from[k];
      if (int4) {
        const int kk = k < half ? k : k - half;
        group[kk / 4 * 64 + r * 4 + kk % 4] |= std::byte(k < half ? q & 15 : (q & 15) << 4);
      } else {
        group[k / 4 * 64 + r * 4 + k % 4] = std::byte(q);
        lo = std::min(lo, q);
        hi = std::max(hi, q);
      }
    }
  }
  seen.min_quant = lo;
  seen.max_quant = hi;
}

// Index of an element in a float tile.
int64_t float_at(const PackedHeader& h, int64_t k, int r) {
  return h.pairs ? k / 2 * (2 * kTileRows) + 2 * r + k % 2 : k * kTileRows + r;
}

void pack_float_row(const PackedHeader& h, const DecodedRow& row, std::byte* tile, int r) {
  const size_t size = h.element == WeightElement::f32 ? 4 : 2;
  for (int64_t k = 0; k < h.cols; ++k) {
    std::memcpy(tile + size_t(float_at(h, k, r)) * size, row.raw.data() + size_t(k) * size, size);
  }
}

Seen pack_tiles(Team& team, const PackedHeader& h, const Backend::PackSource& source, std::byte* tiles) {
  std::vector<Seen> seen(size_t(team.size()));
  std::atomic<int64_t> next{0};
  team.run([&](int member, int) {
    DecodedRow row;
    for (int64_t t = next.fetch_add(1); t < h.tiles; t = next.fetch_add(1)) {
      std::byte* tile = tiles + t * h.tile_bytes;
      std::memset(tile, 0, size_t(h.tile_bytes));
      for (int r = 0; r < tile_rows(h, t); ++r) {
        const int64_t n = t * kTileRows + r;
        source.rows->decode(source.row_order.empty() ? n : source.row_order[size_t(n)], row);
        if (h.group == 0) {
          pack_float_row(h, row, tile, r);
        } else {
          pack_integer_row(h, source.rows->format().group, row, tile, r, seen[size_t(member)]);
        }
      }
    }
  });
  Seen all;
  for (const Seen& s : seen) {
    all.min_quant = std::min(all.min_quant, s.min_quant);
    all.max_quant = std::max(all.max_quant, s.max_quant);
    all.f16_loses |= s.f16_loses;
  }
  return all;
}

// int8 stays signed (bias 0, max_quant 255). But maddubs adds pairs of products in 16 bits, so AVX2 gains where
// the values are few bits: shifted to start at zero, the products of a whole group fit (kernels_avx2.cc).
void choose_bias(Isa isa, const Seen& seen, PackedHeader& h) {
  const int low = seen.min_quant, high = seen.max_quant;
  if (isa != Isa::avx2) return;
  if (low >= 0 && high <= 31) {
    h.max_quant = 31;
  } else if (low >= -16 && high <= 15) {
    h.bias = 16;
    h.max_quant = 31;
  } else if (h.group == 16 && low >= -32 && high <= 31) {
    h.bias = 32;
    h.max_quant = 63;
  }
}

void add_bias(Team& team, const PackedHeader& h, std::byte* tiles) {
  if (h.bias == 0) return;
  team.run([&](int member, int size) {
    const auto bias = uint8_t(h.bias);
    for (int64_t t = h.tiles * member / size; t < h.tiles * (member + 1) / size; ++t) {
      for (int64_t block = 0; block < h.blocks; ++block) {
        auto* q = reinterpret_cast<uint8_t*>(tiles + t * h.tile_bytes + block * h.block_bytes + h.quant_offset);
        for (int i = 0; i < kBlock * kTileRows; ++i) q[i] = uint8_t(q[i] + bias);
      }
    }
  });
}

Result<Buffer> pack_part(Backend& owner, Team& team, Isa isa, PackedHeader h,
                         const Backend::PackSource& source) {
  for (;;) {
    place_parts_of_tile(h);
    Buffer data = owner.alloc(kHeaderBytes + size_t(h.tiles * h.tile_bytes));
    if (data.data() == nullptr) {
      return Error{ErrorCode::kResourceExhausted,
                   "no memory for " + std::to_string(h.tiles * h.tile_bytes) + " bytes of weights"};
    }
    CHECK(reinterpret_cast<uintptr_t>(data.data()) % 64 == 0, "Backend::alloc must align to 64 bytes");
    std::byte* tiles = data.as<std::byte>() + kHeaderBytes;
    const Seen seen = pack_tiles(team, h, source, tiles);
    if (seen.f16_loses && !h.scales_f32) {
      h.scales_f32 = true;  // rare: pack again with wider scales
      continue;
    }
    if (h.element == WeightElement::int8) {
      choose_bias(isa, seen, h);
      add_bias(team, h, tiles);
    }
    std::memcpy(data.data(), &h, sizeof h);
    return data;
  }
}

float scale_at(const PackedHeader& h, const std::byte* scales, int64_t i) {
  if (h.scales_f32) return reinterpret_cast<const float*>(scales)[i];
  return f16_to_f32(reinterpret_cast<const uint16_t*>(scales)[i]);
}

void unpack_integer_row(const PackedHeader& h, std::byte* tile, int r, float* out) {
  const bool int4 = h.element == WeightElement::int4;
  const bool is_signed = h.bias == 0 && h.max_quant == 255;
  const int half = h.group / 2;
  for (int64_t g = 0; g * h.group < h.cols; ++g) {
    const Group group = group_at(h, tile, g);
    const std::byte* quants = group.quants;
    const float scale = scale_at(h, group.scales, r);
    const float min = h.has_min ? scale_at(h, group.mins, r) : 0.f;
    const int64_t count = std::min<int64_t>(h.group, h.cols - g * h.group);
    for (int k = 0; k < count; ++k) {
      int q;
      if (int4) {
        const auto byte = uint8_t(quants[(k % half) / 4 * 64 + r * 4 + k % 4]);
        q = k < half ? byte & 15 : byte >> 4;
      } else {
        const std::byte byte = quants[k / 4 * 64 + r * 4 + k % 4];
        q = is_signed ? int(int8_t(byte)) : int(uint8_t(byte)) - h.bias;
      }
      out[g * h.group + k] = scale * float(q) + min;
    }
  }
}

void unpack_float_row(const PackedHeader& h, const std::byte* tile, int r, float* out) {
  for (int64_t k = 0; k < h.cols; ++k) {
    const int64_t i = float_at(h, k, r);
    if (h.element == WeightElement::f32) {
      out[k] = reinterpret_cast<const float*>(tile)[i];
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(tile)[i];
      out[k] = h.element == WeightElement::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
  }
}

}  // namespace

Result<Weight> pack_weight(Backend& owner, Team& team, Isa isa, std::span<const Backend::PackSource> sources) {
  CHECK(!sources.empty());
  Weight weight;
  weight.cols = sources[0].rows->cols();
  for (Backend::PackSource source : sources) {
    CHECK(source.rows->cols() == weight.cols, "sources of one weight must have equal columns");
    const Fp8AsBf16 wide(*source.rows);  // no kernel here multiplies eight-bit floats
    if (source.rows->format().element == WeightElement::fp8) source.rows = &wide;
    const int64_t count = source.row_order.empty() ? source.rows->rows() : int64_t(source.row_order.size());
    Result<PackedHeader> header = plan_part(isa, *source.rows, count);
    if (!header) return header.error();
    Result<Buffer> data = pack_part(owner, team, isa, *header, source);
    if (!data) return data.error();
    Weight::Part part;
    part.row_begin = weight.rows;
    part.rows = count;
    part.format = source.rows->format();
    part.data = std::move(*data);
    weight.parts.push_back(std::move(part));
    weight.rows += count;
  }
  return weight;
}

void unpack_row(Isa, const Weight& w, int64_t row, float* out) {
  CHECK(row >= 0 && row < w.rows);
  for (const Weight::Part& part : w.parts) {
    if (row >= part.row_begin + part.rows) continue;
    const auto& h = *part.data.as<const PackedHeader>();
    CHECK(h.magic == PackedHeader::kMagic);
    const int64_t n = row - part.row_begin;
    std::byte* tile = part.data.as<std::byte>() + kHeaderBytes + n / kTileRows * h.tile_bytes;
    const int r = int(n % kTileRows);
    return h.group == 0 ? unpack_float_row(h, tile, r, out) : unpack_integer_row(h, tile, r, out);
  }
}

}  // namespace sluice::cpu
