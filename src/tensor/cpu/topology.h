// How many threads it makes sense to run here.
#pragma once

namespace sluice::cpu {

// Physical cores that this process may use: those in its affinity mask (two hardware threads of a core count
// once), and no more than the quota of its cgroups (v1 or v2) pays for. At least 1.
int usable_cores();

}  // namespace sluice::cpu
