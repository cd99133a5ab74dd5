// Drives a Decoder by hand for tests: block tables, positions and batches as the engine would make them.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/decoder.h"
#include "tensor/half.h"

namespace sluice {

class TestRun {
 public:
  struct Chunk {
    int sequence = 0;
    std::vector<int32_t> ids;
    int logits = 1;  // of how many of the last rows
  };
  static constexpr int kBlockTokens = 16, kMaxTokens = 256, kMaxBlocksPerSequence = 64, kBlocks = 1024,
                       kMaxSequences = 16, kLogitRows = 8;

  TestRun(const std::string& path, std::unique_ptr<Backend> backend, bool fused = true)
      : backend_(std::move(backend)) {
    Result<std::unique_ptr<Checkpoint>> opened = open_checkpoint(path);
    CHECK(opened.ok(), opened.ok() ? "" : opened.error().message.c_str());
    spec_ = (*opened)->spec();
    groups_ = layer_groups(spec_);
    Result<Weights> loaded = load_weights(**opened, spec_, *backend_, {}, fused);
    CHECK(loaded.ok(), loaded.ok() ? "" : loaded.error().message.c_str());
    weights_ = std::move(*loaded);
    decoder_ = std::make_unique<Decoder>(spec_, groups_, weights_, *backend_, kMaxTokens, kLogitRows);
    staging_ = backend_->alloc(kStaged * sizeof(int32_t));
    pool_.geometry = {kBlockTokens, groups_.layers_per_group, spec_.kv_heads, spec_.head_dim,
                      backend_->kv_dtype()};
    WorkspaceShape shape;
    shape.max_tokens = kMaxTokens;
    shape.max_sequences = kMaxSequences;
    shape.max_columns = std::max({spec_.hidden, spec_.ffn, spec_.heads * spec_.head_dim});
    shape.max_heads = spec_.heads;
    shape.head_dim = spec_.head_dim;
    shape.max_context = kBlockTokens * kMaxBlocksPerSequence;
    shape.vocab = spec_.vocab;
    shape.max_logit_rows = kLogitRows;
    shape.kv = pool_.geometry;
    CHECK(backend_->reserve(shape).ok());
    pool_.block_bytes = backend_->kv_block_bytes(pool_.geometry);
    memory_ = backend_->alloc_pool(pool_.block_bytes * kBlocks, pool_.geometry);
    CHECK(memory_.data() && staging_.data());
    pool_.data = memory_.as<std::byte>();
  }

  const ModelSpec& spec() const { return spec_; }
  const Weights& weights() const { return weights_; }
  Backend& backend() { return *backend_; }

  // Of the steps to come: told of every op (null: nobody); recorded and then run by the record, where the
  // backend can.
  void set_watch(OpWatch* watch) { decoder_->set_watch(watch); }
  void set_recorded(bool recorded) { recorded_ = recorded && backend_->can_record(); }

  // The tiny references were made by models whose rotation frequencies had passed through a half-precision type
  // on the way (converted to be saved, then back). No real model is meant that way, so only the tests do this.
  void round_frequencies(DType through) {
    for (const Buffer* b : {&weights_.inv_freq, &weights_.local_inv_freq}) {
      if (b->bytes() == 0) continue;
      std::vector<float> values(b->bytes() / sizeof(float));
      backend_->copy_out(values.data(), b->data(), b->bytes());
      for (float& v : values)
        v = through == DType::bf16 ? bf16_to_f32(f32_to_bf16(v)) : f16_to_f32(f32_to_f16(v));
      backend_->copy_in(b->data(), values.data(), b->bytes());
    }
  }

  // One step. Logits of the rows asked for, in the order of the chunks.
  std::vector<std::vector<float>> step(const std::vector<Chunk>& chunks) {
    std::vector<int32_t> ids, positions, row_sequence, row_starts{0}, kv_lengths, logit_index;
    const int groups = int(groups_.groups.size());
    std::vector<std::vector<int32_t>> tables(static_cast<size_t>(groups));
    for (size_t s = 0; s < chunks.size(); s++) {
      Sequence& sequence = sequences_[chunks[s].sequence];
      sequence.tables.resize(size_t(groups));
      const int count = int(chunks[s].ids.size()), first = sequence.length;
      for (int i = 0; i < count; i++) {
        ids.push_back(chunks[s].ids[size_t(i)]);
        positions.push_back(first + i);
        row_sequence.push_back(int32_t(s));
        if (i >= count - chunks[s].logits) logit_index.push_back(int32_t(ids.size()) - 1);
      }
      sequence.length += count;
      row_starts.push_back(int32_t(ids.size()));
      kv_lengths.push_back(sequence.length);
      for (int g = 0; g < groups; g++) {
        std::vector<int32_t>& table = sequence.tables[size_t(g)];
        while (int(table.size()) * kBlockTokens < sequence.length) table.push_back(next_block_++);
        CHECK(next_block_ <= kBlocks && int(table.size()) <= kMaxBlocksPerSequence);
        // A block that no row of this step can see is given back, as the engine does.
        const int window = groups_.groups[size_t(g)].window, seen_from = first - window + 1;
        for (int b = 0; window > 0 && (b + 1) * kBlockTokens <= seen_from; b++) table[size_t(b)] = -1;
        std::vector<int32_t> row = table;
        row.resize(kMaxBlocksPerSequence, -1);
        tables[size_t(g)].insert(tables[size_t(g)].end(), row.begin(), row.end());
      }
    }
    std::vector<int32_t> staged;
    const auto stage = [&](const std::vector<int32_t>& values) {
      CHECK(staged.size() + values.size() <= kStaged);
      const int32_t* at = staging_.as<int32_t>() + staged.size();
      staged.insert(staged.end(), values.begin(), values.end());
      return at;
    };
    BatchInput batch;
    batch.tokens = int(ids.size());
    batch.sequences = int(chunks.size());
    batch.logit_rows = int(logit_index.size());
    batch.token_ids = stage(ids);
    batch.positions = stage(positions);
    batch.row_sequence = stage(row_sequence);
    batch.row_starts = stage(row_starts);
    batch.kv_lengths = stage(kv_lengths);
    batch.logit_index = stage(logit_index);
    batch.one_row_sequences =
        int(std::count_if(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.ids.size() == 1; }));
    batch.table_stride = kMaxBlocksPerSequence;
    batch.groups = groups;
    for (int g = 0; g < groups; g++) batch.tables[g] = stage(tables[size_t(g)]);
    backend_->copy_in(staging_.data(), staged.data(), staged.size() * sizeof(int32_t));
    forward(batch);
    std::vector<std::vector<float>> out;
    for (int first = 0; first < batch.logit_rows; first += kLogitRows) {
      const Tensor logits = decoder_->logits(batch, first, std::min(kLogitRows, batch.logit_rows - first));
      backend_->finish_step();
      for (int64_t r = 0; r < logits.rows; r++) {
        out.emplace_back(size_t(logits.cols));
        backend_->copy_out(out.back().data(), logits.row<float>(r), size_t(logits.cols) * sizeof(float));
        // Sampling does this for the engine.
        if (const float cap = spec_.final_softcap; cap > 0)
          for (float& x : out.back()) x = cap * std::tanh(x / cap);
      }
    }
    backend_->finish_step();
    return out;
  }

 private:
  // Arrays of the largest step.
  static constexpr size_t kStaged =
      4 * kMaxTokens + 3 * kMaxSequences + size_t(kMaxLayerGroups) * kMaxSequences * kMaxBlocksPerSequence;
  void forward(const BatchInput& batch) {
    if (!recorded_) return decoder_->forward(batch, pool_);
    backend_->begin_recording(next_record_);
    decoder_->forward(batch, pool_);
    backend_->end_recording(next_record_);
    backend_->finish_step();
    backend_->replay(next_record_++);
  }

  struct Sequence {
    int length = 0;
    std::vector<std::vector<int32_t>> tables;  // per group
  };
  // The backend outlives everything that holds its memory.
  std::unique_ptr<Backend> backend_;
  ModelSpec spec_;
  LayerGroups groups_;
  Weights weights_;
  std::unique_ptr<Decoder> decoder_;
  KvPool pool_;
  Buffer memory_, staging_;
  std::map<int, Sequence> sequences_;
  int32_t next_block_ = 0;
  bool recorded_ = false;
  int next_record_ = 0;
};

inline int32_t argmax(const std::vector<float>& v) {
  return int32_t(std::max_element(v.begin(), v.end()) - v.begin());
}

}  // namespace sluice
