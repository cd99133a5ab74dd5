// What the op tests share: the backends of this machine, random tensors, ragged batches with their block
// tables.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensor/backend.h"

namespace sluice::test {

struct Candidate {
  std::string isa;
  int threads;
  std::string name() const {
    std::string n = isa + "_" + std::to_string(threads) + "t";
    std::replace(n.begin(), n.end(), '-', '_');
    return n;
  }
};
inline void PrintTo(const Candidate& c, std::ostream* os) { *os << c.name(); }

// Every instruction set that this processor has, alone and with more threads than a small machine has cores.
// What is the same code anyway (amx differs from avx512 in matrix products only) is run once.
inline std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
  for (const char* isa : {"scalar", "avx2", "avx512-vnni", "amx"}) {
    for (int threads : {1, 3}) {
      if (threads == 1 && (std::string(isa) == "amx" || std::string(isa) == "scalar")) continue;
      if (make_cpu_backend({threads, isa}).ok()) all.push_back({isa, threads});
    }
  }
  return all;
}

inline std::unique_ptr<Backend> make(const Candidate& c, int vocab = 1024) {
  auto made = make_cpu_backend({c.threads, c.isa});
  CHECK(made.ok());
  CHECK((*made)
            ->reserve({4096, 16, 4096, 16, 256, 8192, vocab, 16, {}})
            .ok());  // the widest step that the tests take
  return std::move(*made);
}

inline std::vector<float> random_values(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

inline Tensor view(std::vector<float>& v, int64_t rows, int64_t cols) {
  CHECK(v.size() >= size_t(rows * cols));
  return {v.data(), DType::f32, rows, cols, cols};
}

// |got - want| <= absolute + relative * |want|, element by element.
inline void expect_close(const std::vector<float>& got, const std::vector<float>& want, float absolute,
                         float relative) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::fabs(got[i] - want[i]), absolute + relative * std::fabs(want[i]))
        << "at " << i << ": got " << got[i] << ", want " << want[i];
  }
}

inline bool same_bits(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

// A sequence's part in a step: `rows` new tokens after `context` cached ones.
struct Part {
  int context;
  int rows;
};

// A step over sequences; block ids are shuffled so that nothing may rely on their order. `ids` names each
// sequence's blocks, so that several steps (and several batches) can work on one pool.
class Step {
 public:
  static constexpr int kBlocksPerSequence = 4096 / 16 + 8;

  // `per_sequence`: blocks that a sequence may have; more cost memory.
  Step(const std::vector<Part>& parts, const std::vector<int>& ids, int block_tokens, int window = 0,
       int per_sequence = kBlocksPerSequence)
      : stride_(per_sequence) {
    starts_.push_back(0);
    for (size_t s = 0; s < parts.size(); ++s) {
      const Part& p = parts[s];
      for (int i = 0; i < p.rows; ++i) {
        positions_.push_back(p.context + i);
        sequence_.push_back(int(s));
      }
      starts_.push_back(int(positions_.size()));
      lengths_.push_back(p.context + p.rows);
      std::vector<int32_t> blocks(static_cast<size_t>(per_sequence));
      for (int i = 0; i < per_sequence; ++i) blocks[size_t(i)] = ids[s] * per_sequence + i;
      std::shuffle(blocks.begin(), blocks.end(), std::mt19937(uint32_t(ids[s]) + 1));
      const int seen = window > 0 ? std::max(0, p.context - window + 1) : 0;
      for (int i = 0; i < seen / block_tokens; ++i) blocks[size_t(i)] = -1;
      table_.insert(table_.end(), blocks.begin(), blocks.end());
    }
    tokens_.assign(positions_.size(), 0);
  }

  // Table entries of whole blocks, as references that may be changed.
  std::span<KvRef> table(size_t sequence) {
    return std::span(table_).subspan(sequence * size_t(stride_), size_t(stride_));
  }
  static int block_count(int sequences) { return sequences * kBlocksPerSequence; }

  std::vector<KvMove> moves;

  BatchInput batch() const {
    BatchInput b;
    b.moves = moves.data();
    b.move_count = int(moves.size());
    b.tokens = int(positions_.size());
    b.sequences = int(lengths_.size());
    b.token_ids = tokens_.data();
    b.positions = positions_.data();
    b.row_sequence = sequence_.data();
    b.row_starts = starts_.data();
    b.kv_lengths = lengths_.data();
    b.table_stride = stride_;
    b.tables[0] = table_.data();
    b.groups = 1;
    return b;
  }

 private:
  int stride_;
  std::vector<int32_t> positions_, sequence_, starts_, lengths_, table_, tokens_;
};

// One backend with one layer's cache.
struct Lab {
  std::unique_ptr<Backend> backend;
  KvGeometry geometry;
  Buffer pool;
  KvLayer kv;

  Lab(std::unique_ptr<Backend> b, const KvGeometry& g, int blocks, int layer)
      : backend(std::move(b)), geometry(g) {
    const size_t bytes = backend->kv_block_bytes(geometry);
    pool = backend->alloc(bytes * size_t(blocks));
    // What no token has been stored in may hold anything, and must never be read into a result.
    std::memset(pool.data(), 0x7f, pool.bytes());
    kv = {pool.as<std::byte>(), bytes, layer, 0};
  }
};

struct Heads {
  int heads, kv_heads, head_dim;
  int width() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct AttentionSettings {
  int window = 0;
  float softcap = 0;
};

// Stores the step's keys and values and, where wanted, attends; qkv [T, width] is changed. Returns [T, H * D].
inline std::vector<float> store_and_attend(Lab& lab, const Step& step, const Heads& h, std::vector<float>& qkv,
                                           const AttentionSettings& settings, bool attends = true) {
  const BatchInput batch = step.batch();
  std::vector<float> inv_freq(size_t(h.head_dim / 2));
  for (size_t i = 0; i < inv_freq.size(); ++i)
    inv_freq[i] = std::pow(10000.0f, -float(2 * i) / float(h.head_dim));
  const Tensor all = view(qkv, batch.tokens, h.width());
  lab.backend->begin_step(batch, lab.geometry, h.heads);
  lab.backend->rope_store_kv({all, batch, lab.geometry, lab.kv, h.heads, nullptr, nullptr, 1e-6f,
                              h.head_dim / 2 * 2, inv_freq.data(), 1.0f});
  std::vector<float> out(size_t(batch.tokens) * size_t(h.heads * h.head_dim));
  if (!attends) return out;
  lab.backend->attention({all.columns(0, h.heads * h.head_dim), batch, lab.geometry, lab.kv, h.heads,
                          1 / std::sqrt(float(h.head_dim)), settings.window, settings.softcap,
                          view(out, batch.tokens, h.heads * h.head_dim)});
  lab.backend->finish_step();
  return out;
}

}  // namespace sluice::test
