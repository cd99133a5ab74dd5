// Eight bf16 as one 16-byte access, and as eight floats; or four of each, where bf16 and float32 of the same
// columns are wanted by one thread and both are to be read by whole lines.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"
#include "tensor/tensor.h"
#ifdef __CUDACC__
#include "tensor/cuda/ptx/load.h"
#endif

namespace sluice::cuda {

inline constexpr int kVec = 8;  // elements of a 16-byte access

// The rows can be read and written in 16-byte accesses.
inline void check_vectors(const Tensor& t) {
  CHECK(t.dtype == DType::bf16 && t.cols % kVec == 0 && t.stride % kVec == 0, "bf16 rows of 16-byte pieces");
  CHECK(reinterpret_cast<uintptr_t>(t.data) % 16 == 0, "rows begin at 16-byte addresses");
}

// The same of float32 rows, of which bf16 rows are made and the reverse.
inline void check_f32_vectors(const Tensor& t) {
  CHECK(t.dtype == DType::f32 && t.cols % kVec == 0 && t.stride % 4 == 0, "f32 rows of 16-byte pieces");
  CHECK(reinterpret_cast<uintptr_t>(t.data) % 16 == 0, "rows begin at 16-byte addresses");
}

#ifdef __CUDACC__
struct alignas(16) Float8 {
  float v[kVec];
};

__device__ __forceinline__ Float8 unpack(uint4 bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
  Float8 f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f.v[2 * i] = __uint_as_float(words[i] << 16);
    f.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return f;
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, 4);
  return bits;
}

__device__ __forceinline__ uint4 pack(const Float8& f) {
  return {pack_pair(f.v[0], f.v[1]), pack_pair(f.v[2], f.v[3]), pack_pair(f.v[4], f.v[5]),
          pack_pair(f.v[6], f.v[7])};
}

__device__ __forceinline__ float4 unpack(uint2 bits) {
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u), __uint_as_float(bits.y << 16),
          __uint_as_float(bits.y & 0xffff0000u)};
}
__device__ __forceinline__ uint2 pack(const float4& f) { return {pack_pair(f.x, f.y), pack_pair(f.z, f.w)}; }

// Of weights (never written after load), also before wait_for_previous(): issued where it stands.
__device__ __forceinline__ Float8 load_weights(const float* at) {
  const auto* vectors = reinterpret_cast<const float4*>(at);
  const float4 a = ptx::load_here(vectors), b = ptx::load_here(vectors + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}
#endif

}  // namespace sluice::cuda
