// Products of packed weights: time, GB/s and GOP/s per shape, rows and instruction set, beside the read
// bandwidth and the dot-product peak measured in the same run.
//   linear_bench [--threads 1] [--isa avx2,avx512-vnni,amx] [--m 1,16,256] [--shape down] [--sample_ms 400]
// Many copies of a weight are cycled through, so that M = 1 reads memory and not a cache that a model would not
// fit.
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tensor/backend.h"
#include "tensor/cpu/linear/linear.h"

namespace sluice::cpu {
namespace {

struct Shape {
  const char* name;
  int64_t n, k;
  WeightFormat format;
  int low, high;
};

constexpr WeightFormat kInt4{WeightElement::int4, 32, true}, kInt8{WeightElement::int8, 32, false},
    kInt6{WeightElement::int8, 16, false}, kBf16{WeightElement::bf16, 0, false},
    kF32{WeightElement::f32, 0, false};
constexpr Shape kShapes[] = {
    {"smol.qkv", 960, 576, kInt4, 0, 15},          {"smol.o", 576, 576, kInt4, 0, 15},
    {"smol.gate_up", 3072, 576, kInt4, 0, 15},     {"smol.down", 576, 1536, kInt4, 0, 15},
    {"smol.head", 49152, 576, kInt8, -128, 127},   {"gemma.qkv", 1536, 640, kInt8, -16, 15},
    {"gemma.o", 640, 1024, kInt4, 0, 15},          {"gemma.gate_up", 4096, 640, kInt8, -16, 15},
    {"gemma.down4", 640, 2048, kInt4, 0, 15},      {"gemma.down6", 640, 2048, kInt6, -32, 31},
    {"gemma.head", 262144, 640, kInt8, -128, 127}, {"bf16.gate_up", 3072, 576, kBf16, 0, 0},
    {"f32.gate_up", 3072, 576, kF32, 0, 0},
};

// A few random rows, over and over: packing stays quick.
class RandomRows : public RowSource {
 public:
  explicit RandomRows(const Shape& s) : shape_(s) {
    std::mt19937 random(1);
    for (DecodedRow& row : rows_) {
      if (s.format.is_float()) {
        row.raw.resize(size_t(s.k) * (s.format.element == WeightElement::f32 ? 4 : 2));
        continue;
      }
      for (int64_t k = 0; k < s.k; ++k)
        row.q.push_back(int8_t(s.low + int(random() % unsigned(s.high - s.low + 1))));
      row.scale.assign(size_t(s.k / s.format.group), 0.0078125f);
      row.min.assign(size_t(s.k / s.format.group), s.format.has_min ? -0.0625f : 0.f);
    }
  }
  int64_t rows() const override { return shape_.n; }
  int64_t cols() const override { return shape_.k; }
  WeightFormat format() const override { return shape_.format; }
  void decode(int64_t row, DecodedRow& out) const override { out = rows_[row % 16]; }

 private:
  Shape shape_;
  DecodedRow rows_[16];
};

// Bytes per second that the team reads when it does nothing else.
double read_bandwidth(Team& team, const std::byte* data, size_t bytes, int repeats) {
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const TimeNs begin = now_ns();
    team.run([&](int member, int size) {
      const size_t lines = bytes / 256;
      __m128i sums[4] = {};
      for (size_t l = lines * size_t(member) / size_t(size); l < lines * size_t(member + 1) / size_t(size);
           ++l) {
        const auto* p = reinterpret_cast<const __m128i*>(data + l * 256);
        for (int j = 0; j < 16; ++j) sums[j % 4] = _mm_add_epi8(sums[j % 4], _mm_load_si128(p + j));
      }
      const __m128i sum = _mm_add_epi8(_mm_add_epi8(sums[0], sums[1]), _mm_add_epi8(sums[2], sums[3]));
      asm volatile("" ::"x"(sum));
    });
    best = std::max(best, double(bytes) / seconds(now_ns() - begin));
  }
  return best;
}

constexpr int kPeakSteps = 100'000;

__attribute__((target("avx2"))) double peak_avx2() {
  __m256i a[8] = {}, w = _mm256_set1_epi8(1);
  for (int i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 8
    for (__m256i& v : a) {
      asm("vpmaddubsw %1, %1, %%ymm15\n\tvpaddw %%ymm15, %0, %0" : "+x"(v) : "x"(w) : "xmm15");
    }
  }
  for (__m256i& v : a) asm volatile("" ::"x"(v));
  return 8. * kPeakSteps * 64;
}

__attribute__((target("avx512f,avx512vnni"))) double peak_vnni() {
  __m512i a[12] = {}, w = _mm512_set1_epi32(0x01010101);
  for (int i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (__m512i& v : a) asm("vpdpbusd %1, %1, %0" : "+v"(v) : "v"(w));
  }
  for (__m512i& v : a) asm volatile("" ::"v"(v));
  return 12. * kPeakSteps * 128;
}

// static: gcc sees ldtilecfg read only its first bytes and would drop the other stores to a local one.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t columns[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};
const TileConfig kTileConfig;

__attribute__((target("amx-tile,amx-int8"))) double peak_amx() {
  _tile_loadconfig(&kTileConfig);
  _tile_zero(4);
  _tile_zero(5);
  for (int i = 0; i < kPeakSteps; ++i) {
    _tile_dpbusd(0, 4, 5);
    _tile_dpbusd(1, 4, 5);
    _tile_dpbusd(2, 4, 5);
    _tile_dpbusd(3, 4, 5);
  }
  _tile_release();
  return 4. * kPeakSteps * 16 * 16 * 64 * 2;
}

// Operations per second of the instruction set's dot product, from registers.
double peak_ops(Team& team, Isa isa, int repeats) {
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    std::vector<double> ops(size_t(team.size()));
    const TimeNs begin = now_ns();
    team.run([&](int member, int) {
      double n = 0;
      if (isa == Isa::avx2) n = peak_avx2();
      if (isa == Isa::avx512_vnni) n = peak_vnni();
      if (isa == Isa::amx) n = peak_amx();
      ops[size_t(member)] = n;
    });
    double sum = 0;
    for (double n : ops) sum += n;
    best = std::max(best, sum / seconds(now_ns() - begin));
  }
  return best;
}

// One thread's own CPU time: a neighbour that takes the core doesn't count. With several threads, the clock on
// the wall.
TimeNs stamp_ns(const Team& team) {
  if (team.size() > 1) return now_ns();
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return TimeNs(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

struct Options {
  int threads = 1, sample_ms = 400;
  std::string isas = "avx2,avx512-vnni,amx", rows = "1,4,16,64,256", shape;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

void bench_shape(const Shape& s, Isa isa, Team& team, Backend& memory, const Options& o, double peak) {
  const RandomRows rows(s);
  std::vector<Weight> copies;
  size_t bytes = 0;
  while (bytes < (64u << 20)) {
    const Backend::PackSource source{&rows, {}};
    Result<Weight> w = pack_weight(memory, team, isa, {&source, 1});
    CHECK(w.ok());
    bytes += w->bytes();
    copies.push_back(std::move(*w));
  }
  for (const std::string& text : split(o.rows)) {
    const int64_t m = std::stoll(text);
    if (s.n > 40000 && m > 64) continue;
    std::vector<float> x(size_t(m * s.k)), out(size_t(m * s.n));
    std::mt19937 random(2);
    for (float& v : x) v = float(random() % 2001) * 0.001f - 1;
    std::vector<std::byte> scratch(linear_scratch_bytes(isa, m, s.k));
    // Each call is timed alone and the least counts: on a machine that others use, only short samples are
    // undisturbed.
    double best_s = 1e9;
    size_t copy = 0;
    const TimeNs until = now_ns() + TimeNs(o.sample_ms) * 1'000'000;
    for (int i = 0; i < 3 || now_ns() < until; ++i) {
      const Weight& w = copies[copy++ % copies.size()];
      const TimeNs begin = stamp_ns(team);
      linear(team, isa,
             {{x.data(), DType::f32, m, s.k, s.k}, w, nullptr, {out.data(), DType::f32, m, s.n, s.n}},
             scratch.data());
      best_s = std::min(best_s, seconds(stamp_ns(team) - begin));
    }
    // Bandwidth measured right beside, over the same bytes in the same pieces.
    static double bandwidth = 0;
    if (m == 1) {
      bandwidth = 0;
      for (int i = 0; i < 3 || now_ns() < until + TimeNs(o.sample_ms) * 1'000'000; ++i) {
        const Weight& w = copies[copy++ % copies.size()];
        bandwidth = std::max(bandwidth,
                             read_bandwidth(team, w.parts[0].data.as<std::byte>(), w.bytes() / 256 * 256, 1));
      }
    }
    const double ops = 2. * double(m) * double(s.n) * double(s.k), gb = double(copies[0].bytes()) * 1e-9;
    std::printf("%-12s %-14s M %4ld  %9.1f us  %6.1f GB/s (%3.0f%% of %5.1f)  %7.1f GOP/s (%3.0f%% of %6.0f)\n",
                isa_name(isa), s.name, long(m), best_s * 1e6, gb / best_s, 100 * gb / best_s / bandwidth * 1e9,
                bandwidth * 1e-9, ops / best_s * 1e-9, 100 * ops / best_s / peak, peak * 1e-9);
    std::fflush(stdout);
  }
}

int run(const Options& o) {
  Team team(o.threads);
  Result<std::unique_ptr<Backend>> memory = make_cpu_backend({1, "scalar"});
  CHECK(memory.ok());
  for (const std::string& name : split(o.isas)) {
    Result<Isa> isa = choose_isa(name.c_str());
    if (!isa) {
      std::fprintf(stderr, "%s\n", isa.error().message.c_str());
      continue;
    }
    const double peak = peak_ops(team, *isa, 20);
    for (const Shape& s : kShapes) {
      if (std::string(s.name).find(o.shape) != std::string::npos) bench_shape(s, *isa, team, **memory, o, peak);
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::cpu

int main(int argc, char** argv) {
  sluice::cpu::Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--threads")
      o.threads = std::atoi(argv[i + 1]);
    else if (flag == "--sample_ms")
      o.sample_ms = std::atoi(argv[i + 1]);
    else if (flag == "--isa")
      o.isas = argv[i + 1];
    else if (flag == "--m")
      o.rows = argv[i + 1];
    else if (flag == "--shape")
      o.shape = argv[i + 1];
    else
      return std::fprintf(stderr, "unknown flag %s\n", argv[i]), 1;
  }
  return sluice::cpu::run(o);
}
