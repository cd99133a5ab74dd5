// How many threads it makes sense to run here.
#pragma once

#include "base/cpu_set.h"

namespace sluice {

// Physical cores that the calling thread may use: those of its affinity mask, and no more than the quota of its
// cgroups pays for. At least 1.
int usable_cores();

// Two hardware threads of a core count once.
int cores_of(const CpuSet& cpus);
// That the tightest quota of this process's cgroups (v1 or v2) pays for; 0: there is none.
double quota_cores();

}  // namespace sluice
