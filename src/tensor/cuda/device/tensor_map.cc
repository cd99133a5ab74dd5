#include "tensor/cuda/device/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "tensor/cuda/device/cuda_check.h"

namespace sluice::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode encoder() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &found));
    CHECK(found == cudaDriverEntryPointSuccess && function, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

CUtensorMapSwizzle swizzle_of(int bytes) {
  switch (bytes) {
    case 0:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  CHECK(false, "a swizzle is 0, 32, 64 or 128 bytes");
}

CUtensorMapL2promotion promotion_of(int bytes) {
  switch (bytes) {
    case 0:
      return CU_TENSOR_MAP_L2_PROMOTION_NONE;
    case 64:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_64B;
    case 128:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    case 256:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  }
  CHECK(false, "an L2 promotion is 0, 64, 128 or 256 bytes");
}

}  // namespace

CUtensorMap tensor_map_bf16(const void* data, int64_t rows, int64_t cols, int64_t pitch, int box_rows,
                            int box_cols, int swizzle_bytes, int promotion_bytes) {
  CHECK(pitch % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0 && box_rows <= 256);
  CHECK(swizzle_bytes == 0 || box_cols * 2 == swizzle_bytes);
  const cuuint64_t size[2] = {cuuint64_t(cols), cuuint64_t(rows)};
  const cuuint64_t stride_bytes[1] = {cuuint64_t(pitch) * 2};
  const cuuint32_t box[2] = {cuuint32_t(box_cols), cuuint32_t(box_rows)};
  const cuuint32_t step[2] = {1, 1};
  CUtensorMap map;
  const CUresult made =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), size, stride_bytes, box,
                step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(swizzle_bytes), promotion_of(promotion_bytes),
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(made == CUDA_SUCCESS, "the driver refused a tensor map");
  return map;
}

CUtensorMap tensor_map_bf16_boxes(const void* data, int64_t rows, int64_t cols, int64_t pitch, int box_rows,
                                  int boxes, int promotion_bytes) {
  CHECK(pitch % 8 == 0 && cols % 64 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0 && box_rows <= 256);
  const cuuint64_t size[3] = {64, cuuint64_t(rows), cuuint64_t(cols / 64)};
  const cuuint64_t stride_bytes[2] = {cuuint64_t(pitch) * 2, 128};
  const cuuint32_t box[3] = {64, cuuint32_t(box_rows), cuuint32_t(boxes)};
  const cuuint32_t step[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult made =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), size, stride_bytes, box,
                step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion_of(promotion_bytes),
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(made == CUDA_SUCCESS, "the driver refused a tensor map");
  return map;
}

CUtensorMap tensor_map_bytes(const void* data, int64_t rows, int64_t cols, int box_rows) {
  CHECK(cols % 16 == 0);
  // Pairs of bytes, as if they were bf16: the copy engine only moves them.
  return tensor_map_bf16(data, rows, cols / 2, cols / 2, box_rows, 64, 128, 128);
}

CUtensorMap tensor_map_bytes_boxes(const void* data, int64_t rows, int64_t cols, int box_rows, int boxes) {
  return tensor_map_bf16_boxes(data, rows, cols / 2, cols / 2, box_rows, boxes, 128);
}

CUtensorMap tensor_map_blocks(const void* data, int block_bytes, int64_t across, int64_t down, int box_across,
                              int box_down) {
  CHECK(block_bytes % 16 == 0 && block_bytes <= 2048 && reinterpret_cast<uintptr_t>(data) % 16 == 0);
  const cuuint64_t size[3] = {cuuint64_t(block_bytes / 8), cuuint64_t(across), cuuint64_t(down)};
  const cuuint64_t stride_bytes[2] = {cuuint64_t(block_bytes), cuuint64_t(across) * cuuint64_t(block_bytes)};
  const cuuint32_t box[3] = {cuuint32_t(block_bytes / 8), cuuint32_t(box_across), cuuint32_t(box_down)};
  const cuuint32_t step[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult made =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT64, 3, const_cast<void*>(data), size, stride_bytes, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, promotion_of(128),
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(made == CUDA_SUCCESS, "the driver refused a tensor map");
  return map;
}

}  // namespace sluice::cuda
