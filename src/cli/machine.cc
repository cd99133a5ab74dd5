#include "cli/machine.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "tensor/cpu/isa.h"
#include "tensor/cpu/team.h"

namespace sluice::cli {
namespace {

constexpr size_t kReadBytes = size_t(384) << 20;  // of each pass, all threads together
constexpr int kPasses = 5;                        // the best one counts: others were disturbed

std::atomic<uint64_t> sink{0};  // keeps results alive

// Sums 64-byte lines with four independent chains, so that the core waits for memory and nothing else.
__attribute__((noinline)) uint64_t read_all(const std::byte* data, size_t bytes) {
  __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
  const auto* at = reinterpret_cast<const __m128i*>(data);
  for (const auto* end = reinterpret_cast<const __m128i*>(data + bytes); at < end; at += 4) {
    a = _mm_add_epi64(a, _mm_load_si128(at));
    b = _mm_add_epi64(b, _mm_load_si128(at + 1));
    c = _mm_add_epi64(c, _mm_load_si128(at + 2));
    d = _mm_add_epi64(d, _mm_load_si128(at + 3));
  }
  const __m128i sum = _mm_add_epi64(_mm_add_epi64(a, b), _mm_add_epi64(c, d));
  return uint64_t(_mm_cvtsi128_si64(sum));
}

// Best time over passes of `body(member)` on all members.
template <typename Body>
double best_seconds(cpu::Team& team, const Body& body) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const TimeNs start = now_ns();
    team.run([&](int member, int) { body(member); });
    best = std::min(best, seconds(now_ns() - start));
  }
  return best;
}

double measure_read(cpu::Team& team) {
  const size_t each = kReadBytes / size_t(team.size()) / 4096 * 4096;
  const size_t total = each * size_t(team.size());
  void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  madvise(memory, total, MADV_HUGEPAGE);
  auto* data = static_cast<std::byte*>(memory);
  team.run([&](int member, int) { std::memset(data + size_t(member) * each, member + 1, each); });
  const double s =
      best_seconds(team, [&](int member) { sink += read_all(data + size_t(member) * each, each); });
  munmap(memory, total);
  return double(total) / s;
}

// Each of these runs `rounds` times eight independent multiply-adds on registers and returns the operations
// done.
using Arithmetic = double (*)(int64_t rounds);
constexpr int64_t kRounds = 4'000'000;

double scalar_f32(int64_t rounds) {
  float acc[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int64_t i = 0; i < rounds; ++i)
    for (float& a : acc) a = a * 0.999f + 0.5f;
  for (const float a : acc) sink += uint64_t(a);
  return double(rounds) * 16;
}

double scalar_int8(int64_t rounds) {
  int32_t acc[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int64_t i = 0; i < rounds; ++i)
    for (int32_t& a : acc) a += int8_t(a) * int8_t(i);
  for (const int32_t a : acc) sink += uint64_t(a);
  return double(rounds) * 16;
}

__attribute__((target("avx2,fma"))) double avx2_f32(int64_t rounds) {
  __m256 acc[8];
  for (int i = 0; i < 8; ++i) acc[i] = _mm256_set1_ps(float(i));
  const __m256 m = _mm256_set1_ps(0.999f), add = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) acc[j] = _mm256_fmadd_ps(acc[j], m, add);
  }
  float out[8];
  for (const __m256& a : acc) _mm256_storeu_ps(out, a), sink += uint64_t(out[0]);
  return double(rounds) * 8 * 8 * 2;
}

// What int8 products cost without VNNI: multiply pairs to 16 bits, add pairs to 32 bits, accumulate.
__attribute__((target("avx2,fma"))) double avx2_int8(int64_t rounds) {
  __m256i acc[8];
  for (int i = 0; i < 8; ++i) acc[i] = _mm256_set1_epi32(i);
  __m256i a = _mm256_set1_epi8(3);
  const __m256i b = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      asm volatile("" : "+x"(a));  // a new operand each time, as far as the compiler can know
      acc[j] = _mm256_add_epi32(acc[j], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  int32_t out[8];
  for (const __m256i& v : acc)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), v), sink += uint64_t(out[0]);
  return double(rounds) * 8 * 32 * 2;
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) double avx512_f32(int64_t rounds) {
  __m512 acc[8];
  for (int i = 0; i < 8; ++i) acc[i] = _mm512_set1_ps(float(i));
  const __m512 m = _mm512_set1_ps(0.999f), add = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) acc[j] = _mm512_fmadd_ps(acc[j], m, add);
  }
  float out[16];
  for (const __m512& a : acc) _mm512_storeu_ps(out, a), sink += uint64_t(out[0]);
  return double(rounds) * 8 * 16 * 2;
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) double avx512_int8(int64_t rounds) {
  __m512i acc[8];
  for (int i = 0; i < 8; ++i) acc[i] = _mm512_set1_epi32(i);
  __m512i a = _mm512_set1_epi8(3);
  const __m512i b = _mm512_set1_epi8(5);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      asm volatile("" : "+v"(a));
      acc[j] = _mm512_dpbusd_epi32(acc[j], a, b);
    }
  }
  int32_t out[16];
  for (const __m512i& v : acc) _mm512_storeu_si512(out, v), sink += uint64_t(out[0]);
  return double(rounds) * 8 * 64 * 2;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Four accumulator tiles, two of each operand: as a product of matrices would use them.
__attribute__((target("amx-tile,amx-int8"))) double amx_int8(int64_t rounds) {
  // In static memory: GCC 12 takes only the first word as read, and would leave the rest of a local unwritten.
  static const TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  const int64_t products = rounds / 16;
  for (int64_t i = 0; i < products; ++i) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
  return double(products) * 4 * 16 * 16 * 64 * 2;
}

double measure_arithmetic(cpu::Team& team, Arithmetic body, int64_t rounds) {
  double ops = 0;
  const double s = best_seconds(team, [&](int member) {
    const double done = body(rounds);
    if (member == 0) ops = done;
  });
  return ops * team.size() / s;
}

}  // namespace

MachineLimits measure_machine(int threads) {
  cpu::Team team(threads);
  const cpu::Isa isa = cpu::best_isa();
  MachineLimits limits;
  limits.threads = threads;
  limits.instruction_set = cpu::isa_name(isa);
  limits.read_bytes_s = measure_read(team);
  const bool avx512 = isa == cpu::Isa::avx512_vnni || isa == cpu::Isa::amx;
  const bool avx2 = avx512 || isa == cpu::Isa::avx2;
  limits.f32_ops_s = measure_arithmetic(team, avx512 ? avx512_f32 : avx2 ? avx2_f32 : scalar_f32, kRounds);
  const bool amx = isa == cpu::Isa::amx;
  limits.int8_ops_s = measure_arithmetic(team,
                                         amx      ? amx_int8
                                         : avx512 ? avx512_int8
                                         : avx2   ? avx2_int8
                                                  : scalar_int8,
                                         kRounds);
  return limits;
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

}  // namespace sluice::cli
