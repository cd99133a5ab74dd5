// Sizes for people.
#pragma once

#include <cstddef>

namespace sluice {

inline double mib(size_t bytes) { return double(bytes) / double(size_t{1} << 20); }
inline double gib(size_t bytes) { return double(bytes) / double(size_t{1} << 30); }

}  // namespace sluice
