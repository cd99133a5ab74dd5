// TMA descriptors for bf16 matrices. The driver's encoder is found through the runtime, so libcuda is not
// linked.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace sluice::cuda {

// A row-major bf16 matrix [rows, cols], `pitch` elements from row to row (a multiple of 8, data 16-byte
// aligned), read in boxes of box_rows x box_cols. With 128-byte swizzle box_cols must be 64 (swizzle_bytes
// 128), 32 (64) or 16 (32); swizzle_bytes 0: none. What lies outside the matrix reads as zero. promotion_bytes
// (0, 64, 128, 256): what the L2 fetches at least; 256 costs streams of 128-byte wide boxes 5 % (4.37 TB/s
// instead of 4.60). CHECKs that the driver accepts it.
CUtensorMap tensor_map_bf16(const void* data, int64_t rows, int64_t cols, int64_t pitch, int box_rows,
                            int box_cols, int swizzle_bytes, int promotion_bytes = 256);

// The same matrix, cols a multiple of 64, read in `boxes` boxes of box_rows x 64 side by side (128-byte
// swizzle) by one copy (ptx::copy_boxes).
CUtensorMap tensor_map_bf16_boxes(const void* data, int64_t rows, int64_t cols, int64_t pitch, int box_rows,
                                  int boxes, int promotion_bytes);

// Of a dense matrix of bytes, cols (and for several boxes cols / 128) without a remainder by 16 (128): boxes of
// box_rows x 128 with 128-byte swizzle, L2 promotion of 128 bytes, as the two above.
CUtensorMap tensor_map_bytes(const void* data, int64_t rows, int64_t cols, int box_rows);
CUtensorMap tensor_map_bytes_boxes(const void* data, int64_t rows, int64_t cols, int box_rows, int boxes);

// Blocks of block_bytes (a multiple of 16, at most 2048), `across` of them one after the other in each of
// `down` dense panels, read in boxes of box_across x box_down blocks by one copy (ptx::copy_boxes: the panel,
// then the block of the panel). Not swizzled; blocks outside read as zero.
CUtensorMap tensor_map_blocks(const void* data, int block_bytes, int64_t across, int64_t down, int box_across,
                              int box_down);

}  // namespace sluice::cuda
