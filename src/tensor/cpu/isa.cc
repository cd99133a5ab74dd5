#include "tensor/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace sluice::cpu {
namespace {

#if defined(__x86_64__)

// Linux hands out the 8 KB of AMX tile state only on request: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA). The
// permission belongs to the process, so threads made later have it too.
bool request_amx_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_amx() {
  if (!has_avx512_vnni()) return false;
  unsigned a, b, c, d;
  __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr unsigned kAll = kAmxBf16 | kAmxTile | kAmxInt8;
  static const bool permitted = (d & kAll) == kAll && request_amx_permission();
  return permitted;
}

#else
bool has_avx2() { return false; }
bool has_avx512_vnni() { return false; }
bool has_amx() { return false; }
#endif

bool has(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return has_avx2();
    case Isa::avx512_vnni:
      return has_avx512_vnni();
    case Isa::amx:
      return has_amx();
  }
  return false;
}

constexpr Isa kAllIsas[] = {Isa::amx, Isa::avx512_vnni, Isa::avx2, Isa::scalar};

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512_vnni:
      return "avx512-vnni";
    case Isa::amx:
      return "amx";
  }
  return "?";
}

Isa best_isa() {
  for (Isa isa : kAllIsas) {
    if (has(isa)) return isa;
  }
  return Isa::scalar;
}

Result<Isa> choose_isa(const char* name) {
  if (name == nullptr || *name == 0) return best_isa();
  for (Isa isa : kAllIsas) {
    if (std::string_view(name) != isa_name(isa)) continue;
    if (has(isa)) return isa;
    return Error{ErrorCode::kUnsupported, "this processor has no " + std::string(name) +
                                              "; the best that it has is " + isa_name(best_isa())};
  }
  return Error{ErrorCode::kInvalidArgument,
               "unknown instruction set '" + std::string(name) + "': scalar, avx2, avx512-vnni or amx"};
}

}  // namespace sluice::cpu
