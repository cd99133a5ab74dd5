// What the CPU backend's ops reach on this machine: `ninja ops_bench && ops_bench [threads [isa [family]]]`
// (0 threads: one per core; isa "": the best; family: decode, prefill, rows or sample). One line
// per case: time per call, bytes moved or operations done per second, and the share of what the machine was
// measured to give. Not a test: figures depend on what else runs. docs/performance.md says how to read them.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tensor/backend.h"
#include "tensor/cpu/team.h"

namespace sluice {
namespace {

bool use_cpu_time = false;

// With one thread, its own processor time: other programs' turns on the core do not count.
TimeNs clock_ns() {
  if (!use_cpu_time) return now_ns();
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return TimeNs(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Shortest of several runs of about 40 ms each, seconds per call.
double best_seconds(const std::function<void()>& f) {
  f();
  const TimeNs once_begin = clock_ns();
  f();
  const double once = seconds(clock_ns() - once_begin);
  const int calls = std::max(1, int(0.04 / std::max(once, 1e-7)));
  double best = 1e9;
  for (int run = 0; run < 7; ++run) {
    const TimeNs begin = clock_ns();
    for (int i = 0; i < calls; ++i) f();
    best = std::min(best, seconds(clock_ns() - begin) / calls);
  }
  return best;
}

struct Limits {
  double read_gb_s = 0;
};

// Reading 256 MB with all threads.
double measure_read(cpu::Team& team) {
  std::vector<uint64_t> data(size_t(32) << 20, 1);
  std::vector<uint64_t> sums(size_t(team.size()) * 8);
  const double s = best_seconds([&] {
    team.run([&](int member, int size) {
      const size_t n = data.size(), end = n * size_t(member + 1) / size_t(size);
      uint64_t a = 0, b = 0, c = 0, d = 0;
      for (size_t i = n * size_t(member) / size_t(size); i + 8 <= end; i += 8) {
        a += data[i] + data[i + 4];
        b += data[i + 1] + data[i + 5];
        c += data[i + 2] + data[i + 6];
        d += data[i + 3] + data[i + 7];
      }
      sums[size_t(member) * 8] = a + b + c + d;
    });
  });
  return double(data.size()) * 8 / s * 1e-9;
}

struct Shape {
  const char* name;
  int layers, heads, kv_heads, head_dim;
};

struct Model {
  Backend& backend;
  Shape s;
  int sequences, depth, rows;
  KvGeometry g;
  Buffer pool;
  std::vector<int32_t> positions, sequence, starts, lengths, table, ids;
  BatchInput batch;
  std::vector<float> qkv, out, inv_freq;

  Model(Backend& b, Shape shape, int sequences, int depth, int rows)
      : backend(b), s(shape), sequences(sequences), depth(depth), rows(rows) {
    g = {16, s.layers, s.kv_heads, s.head_dim, b.kv_dtype()};
    const int blocks = (depth + rows + 15) / 16;
    pool = b.alloc(b.kv_block_bytes(g) * size_t(blocks * sequences));
    std::mt19937 rng(1);
    uint16_t* half = pool.as<uint16_t>();
    for (size_t i = 0; i < pool.bytes() / 2; ++i) half[i] = uint16_t(0x3000 | (rng() & 0x83ff));
    table.resize(size_t(blocks * sequences));
    for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(i);
    std::shuffle(table.begin(), table.end(), rng);
    starts.push_back(0);
    for (int q = 0; q < sequences; ++q) {
      for (int i = 0; i < rows; ++i) positions.push_back(depth + i), sequence.push_back(q);
      starts.push_back(int(positions.size()));
      lengths.push_back(depth + rows);
    }
    batch.tokens = sequences * rows;
    batch.sequences = sequences;
    batch.positions = positions.data();
    batch.row_sequence = sequence.data();
    batch.row_starts = starts.data();
    batch.kv_lengths = lengths.data();
    batch.table_stride = blocks;
    batch.tables[0] = table.data();
    batch.groups = 1;
    std::uniform_real_distribution<float> uniform(-1, 1);
    qkv.resize(size_t(batch.tokens * (s.heads + 2 * s.kv_heads) * s.head_dim));
    for (float& x : qkv) x = uniform(rng);
    out.resize(size_t(batch.tokens * s.heads * s.head_dim));
    inv_freq.assign(size_t(s.head_dim / 2), 0.01f);
  }

  Tensor all() {
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    return {qkv.data(), DType::f32, batch.tokens, width, width};
  }
  void attend(int window) {
    backend.begin_step(batch, g, s.heads);
    const int64_t width = s.heads * s.head_dim;
    for (int layer = 0; layer < s.layers; ++layer) {
      const KvLayer kv{pool.as<std::byte>(), backend.kv_block_bytes(g), layer, 0};
      backend.attention({all().columns(0, width), batch, g, kv, s.heads, 0.125f, window, 0,
                         Tensor{out.data(), DType::f32, batch.tokens, width, width}});
    }
  }
  void rope() {
    backend.begin_step(batch, g, s.heads);
    for (int layer = 0; layer < s.layers; ++layer) {
      const KvLayer kv{pool.as<std::byte>(), backend.kv_block_bytes(g), layer, 0};
      backend.rope_store_kv(
          {all(), batch, g, kv, s.heads, nullptr, nullptr, 1e-6f, s.head_dim, inv_freq.data(), 1});
    }
  }
};

void attention_line(Backend& b, Shape s, int sequences, int depth, int rows, int window, const Limits& limits) {
  Model m(b, s, sequences, depth, rows);
  const double t = best_seconds([&] { m.attend(window); });
  double pairs = 0, tokens = 0;
  for (int i = 0; i < rows; ++i) pairs += window > 0 ? std::min(window, depth + i + 1) : depth + i + 1;
  tokens = window > 0 ? std::min(window + rows, depth + rows) : depth + rows;
  const double bytes = tokens * sequences * s.layers * s.kv_heads * s.head_dim * 4;
  const double flops = pairs * sequences * s.layers * s.heads * s.head_dim * 4;
  std::printf(
      "attention %-8s %3d x %4d rows at %5d window %4d: %9.1f us  %7.1f GB/s (%3.0f%% of read)  %7.1f "
      "GFLOP/s\n",
      s.name, sequences, rows, depth, window, t * 1e6, bytes / t * 1e-9,
      100 * bytes / t * 1e-9 / limits.read_gb_s, flops / t * 1e-9);
}

void rope_line(Backend& b, Shape s, int sequences, int rows) {
  Model m(b, s, sequences, 100, rows);
  const double t = best_seconds([&] { m.rope(); });
  std::printf("rope+store %-8s %3d x %4d rows: %9.1f us a step of %d layers\n", s.name, sequences, rows,
              t * 1e6, s.layers);
}

void sample_line(Backend& b, const char* name, int rows, int vocab, SampleRow row) {
  std::vector<float> logits(size_t(rows) * size_t(vocab));
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 2.5f);
  for (float& x : logits) x = normal(rng);
  std::vector<SampleRow> wishes(size_t(rows), row);
  std::vector<SampleResult> results{size_t(rows)};
  std::vector<int32_t> last(size_t(rows), 0);
  for (int i = 0; i < rows; ++i) wishes[size_t(i)].slot = i;
  const double t = best_seconds([&] {
    for (auto& w : wishes) ++w.counter;
    b.sample({Tensor{logits.data(), DType::f32, rows, vocab, vocab}, wishes, results, last.data(), 0});
  });
  std::printf("sample %-16s %3d rows of %6d: %9.1f us  %6.1f GB/s\n", name, rows, vocab, t * 1e6,
              double(rows) * vocab * 4 / t * 1e-9);
}

void row_lines(Backend& b) {
  for (auto [rows, cols] : {std::pair(1, 576), std::pair(16, 576), std::pair(512, 576)}) {
    const int wide = cols * 8 / 3;
    std::vector<float> x(size_t(rows * cols), 0.5f),
        r = x, w(size_t(cols), 1), gate(size_t(rows * wide * 2), 0.3f), out(size_t(rows * wide));
    const Tensor tx{x.data(), DType::f32, rows, cols, cols}, tr{r.data(), DType::f32, rows, cols, cols};
    double t = best_seconds([&] { b.add_rms_norm({tr, tx, nullptr, w.data(), 1e-5f, tx}); });
    std::printf("add_rms_norm %4d x %4d: %8.2f us  %6.1f GB/s\n", rows, cols, t * 1e6,
                double(x.size()) * 16 / t * 1e-9);
    t = best_seconds([&] {
      b.act_mul({Tensor{gate.data(), DType::f32, rows, 2 * wide, 2 * wide}, Activation::silu,
                 Tensor{out.data(), DType::f32, rows, wide, wide}});
    });
    std::printf("act_mul      %4d x %4d: %8.2f us  %6.1f GB/s\n", rows, wide, t * 1e6,
                double(out.size()) * 12 / t * 1e-9);
  }
}

int main_program(int threads, const std::string& isa, const std::string& only) {
  const auto wanted = [&](const char* family) { return only.empty() || only == family; };
  auto made = make_cpu_backend({threads, isa});
  if (!made.ok()) return std::fprintf(stderr, "%s\n", made.error().message.c_str()), 1;
  Backend& b = **made;
  const DeviceInfo info = b.info();
  use_cpu_time = info.threads == 1;
  std::printf("%s, %s, %d threads\n", info.name.c_str(), info.instruction_set.c_str(), info.threads);
  if (!b.reserve({4096, 16, 4096, 32, 256, 32768, 262144}).ok()) return 1;
  Limits limits;
  {
    cpu::Team team(info.threads);
    limits.read_gb_s = measure_read(team);
    const double all = best_seconds([&] { team.run([](int, int) {}); });
    const double tasks = best_seconds([&] { team.run_tasks(8, [](int, int) {}); });
    std::printf("read %.1f GB/s; a call of the team: run %.2f us, run_tasks %.2f us\n", limits.read_gb_s,
                all * 1e6, tasks * 1e6);
  }
  const Shape smol{"smollm2", 30, 9, 3, 64}, gemma{"gemma3", 18, 4, 1, 256}, llama{"llama8b", 8, 32, 8, 128};
  if (wanted("decode")) {
    for (int depth : {0, 128, 1024, 8192}) attention_line(b, smol, 1, depth, 1, 0, limits);
    for (int depth : {128, 1024}) attention_line(b, smol, 16, depth, 1, 0, limits);
    for (int depth : {128, 1024, 8192}) attention_line(b, gemma, 1, depth, 1, 0, limits);
    attention_line(b, gemma, 1, 1024, 1, 512, limits);
    attention_line(b, llama, 1, 1024, 1, 0, limits);
  }
  if (wanted("prefill")) {
    for (int rows : {512, 1024}) attention_line(b, smol, 1, 0, rows, 0, limits);
    attention_line(b, smol, 1, 1024, 512, 0, limits);
    attention_line(b, gemma, 1, 0, 512, 0, limits);
    attention_line(b, llama, 1, 0, 512, 0, limits);
  }
  if (wanted("rows")) {
    rope_line(b, smol, 1, 1);
    rope_line(b, smol, 16, 1);
    rope_line(b, smol, 1, 512);
    row_lines(b);
  }
  if (!wanted("sample")) return 0;
  for (int vocab : {49152, 262144}) {
    for (int rows : {1, 16}) {
      sample_line(b, "greedy", rows, vocab, {});
      SampleRow r;
      r.top_logprobs = 5;
      sample_line(b, "greedy+logprobs", rows, vocab, r);
      r = {};
      r.temperature = 1;
      sample_line(b, "plain draw", rows, vocab, r);
      r.top_k = 40;
      r.top_p = 0.95f;
      sample_line(b, "top_k 40, top_p", rows, vocab, r);
      r.top_k = 0;
      sample_line(b, "top_p 0.95", rows, vocab, r);
      r.repetition_penalty = 1.1f;
      static const int32_t history[] = {1, 2, 3};
      r.history = history;
      r.history_total = 3;
      sample_line(b, "top_p, penalty", rows, vocab, r);
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::main_program(argc > 1 ? std::atoi(argv[1]) : 0, argc > 2 ? argv[2] : "",
                              argc > 3 ? argv[3] : "");
}
