// Which kernels this processor can run. Chosen once, at start, from CPUID (and for AMX the kernel's
// permission).
#pragma once

#include "base/result.h"

namespace sluice::cpu {

enum class Isa {
  scalar,
  avx2,         // AVX2 + FMA + F16C
  avx512_vnni,  // AVX-512 F/BW/VL/DQ + VNNI (+ BF16 where present)
  amx,          // the above + AMX-INT8 / AMX-BF16 tiles
};

const char* isa_name(Isa isa);  // "scalar", "avx2", "avx512-vnni", "amx"
Isa best_isa();
// `name` empty: best_isa(). An error names what the processor lacks.
Result<Isa> choose_isa(const char* name);

}  // namespace sluice::cpu
