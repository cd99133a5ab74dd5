// A ragged step over a paged cache, for the card and for the judge: the same block ids, bf16 there, float32
// here.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda::test {

// A sequence's part in a step: `rows` new tokens after `context` cached ones. Blocks before `first_block` are
// not held.
struct Part {
  int context, rows, first_block = 0;
};

class PagedBatch {
 public:
  // `padding`: so many more sequences of one row, kv_length 0 and no blocks, which only the card sees.
  PagedBatch(const std::vector<Part>& parts, int block_tokens, int padding, uint32_t seed)
      : real_sequences_(int(parts.size())) {
    for (const Part& p : parts)
      stride_ = std::max(stride_, (p.context + p.rows + block_tokens - 1) / block_tokens);
    for (const Part& p : parts)
      blocks_ += (p.context + p.rows + block_tokens - 1) / block_tokens - p.first_block;
    std::vector<int32_t> ids(static_cast<size_t>(blocks_));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    starts_.push_back(0);
    for (int s = 0; s < real_sequences_ + padding; ++s) {
      const bool real = s < real_sequences_;
      const Part p = real ? parts[size_t(s)] : Part{0, 1};
      for (int i = 0; i < p.rows; ++i) positions_.push_back(p.context + i), sequence_.push_back(s);
      if (real) real_rows_ += p.rows;
      starts_.push_back(int(positions_.size()));
      lengths_.push_back(real ? p.context + p.rows : 0);
      const int held = real ? (p.context + p.rows + block_tokens - 1) / block_tokens : 0;
      for (int b = 0; b < stride_; ++b) {
        int32_t id = -1;
        if (b >= p.first_block && b < held) id = ids.back(), ids.pop_back();
        table_.push_back(id);
      }
    }
    d_positions_ = upload(positions_), d_sequence_ = upload(sequence_), d_starts_ = upload(starts_);
    d_lengths_ = upload(lengths_), d_table_ = upload(table_);
  }

  int blocks() const { return blocks_; }
  int real_rows() const { return real_rows_; }
  int rows() const { return int(positions_.size()); }
  const std::vector<int32_t>& starts() const { return starts_; }
  const std::vector<int32_t>& lengths() const { return lengths_; }
  // Block of a sequence's position, -1 where none is held.
  int32_t block(int sequence, int index) const {
    return table_[size_t(sequence) * size_t(stride_) + size_t(index)];
  }

  BatchInput judged() const {
    BatchInput b = common();
    b.tokens = real_rows_, b.sequences = real_sequences_;
    b.positions = positions_.data(), b.row_sequence = sequence_.data(), b.row_starts = starts_.data();
    b.kv_lengths = lengths_.data(), b.tables[0] = table_.data();
    return b;
  }
  BatchInput on_card() const {
    BatchInput b = common();
    b.tokens = rows(), b.sequences = int(lengths_.size());
    b.positions = d_positions_.as<int32_t>(), b.row_sequence = d_sequence_.as<int32_t>();
    b.row_starts = d_starts_.as<int32_t>(), b.kv_lengths = d_lengths_.as<int32_t>();
    b.tables[0] = d_table_.as<int32_t>();
    return b;
  }

 private:
  BatchInput common() const {
    BatchInput b;
    b.table_stride = stride_, b.groups = 1;
    return b;
  }
  int real_sequences_, real_rows_ = 0, stride_ = 1, blocks_ = 0;
  std::vector<int32_t> positions_, sequence_, starts_, lengths_, table_;
  DeviceBytes d_positions_{0}, d_sequence_{0}, d_starts_{0}, d_lengths_{0}, d_table_{0};
};

// One pool, twice. Both begin as NaN: what nobody stored must not be read into a result.
struct PagedCache {
  KvGeometry geometry, judged_geometry;
  std::vector<float> judged;
  DeviceBytes card{0};
  int layer;

  PagedCache(const KvGeometry& g, int blocks, int layer_in_group)
      : geometry(g), judged_geometry(g), layer(layer_in_group) {
    geometry.dtype = DType::bf16, judged_geometry.dtype = DType::f32;
    const size_t elements = KvRows(g).block_bytes() / 2 * size_t(blocks);
    judged.assign(elements, std::numeric_limits<float>::quiet_NaN());
    card = DeviceBytes(elements * 2);
  }
  size_t block_bytes() const { return KvRows(geometry).block_bytes(); }
  KvLayer judged_layer() { return {reinterpret_cast<std::byte*>(judged.data()), block_bytes() * 2, layer, 0}; }
  KvLayer card_layer() const { return {card.as<std::byte>(), block_bytes(), layer, 0}; }
  // Random bf16 values for one token's keys and values of all heads, in both.
  float* judged_at(int32_t block, bool value, int head, int token) {
    const KvRows lie(geometry);
    const int64_t row = block * lie.block_rows() + lie.layer_row(layer) + (value ? lie.value_rows() : 0) +
                        int64_t(head) * lie.block_tokens + token;
    return judged.data() + row * lie.head_dim;
  }
  // The judge's values to the card; NaN stays NaN.
  void copy_to_card() { card = upload_bf16(judged); }
};

}  // namespace sluice::cuda::test
