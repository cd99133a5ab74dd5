// Counts what the engine's own threads ("sluice-…") allocate in this test program.
#pragma once

#include <cstdint>

namespace sluice {
uint64_t engine_allocations();
}
