// Hopper's products of a warpgroup (four warps): operands in shared memory, read while the warps continue.
// For sm_90a only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/float_types.h"

namespace tessera::cuda::hopper {

// A tile of bf16 rows is one or two panels of 64 columns each, one after the other. A row of a panel has 128
// bytes; chunk c (16 bytes) of row r is at place c ^ (r % 8): the 128-byte swizzle of wgmma and of tensor
// copies. Panels start at multiples of 1,024 bytes.
inline constexpr int kPanelColumns = 64;
inline constexpr int kRowBytes = 2 * kPanelColumns;

// Where chunk `chunk` of row `row` is in a tile of kRows rows.
template <int kRows>
__device__ inline bf16* chunk_place(bf16* tile, int row, int chunk) {
  return tile + chunk / 8 * kRows * kPanelColumns + row * kPanelColumns + (((chunk ^ row) & 7) << 3);
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// An operand as the instruction takes it: address and distances in units of 16 bytes, and the swizzle.
__device__ inline uint64_t operand(const bf16* tile, int panel_bytes) {
  constexpr uint64_t kEightRows = (8 * kRowBytes) >> 4, kSwizzle128 = uint64_t{1} << 62;
  return (shared_address(tile) >> 4) | (static_cast<uint64_t>(panel_bytes >> 4) << 16) | (kEightRows << 32) |
         kSwizzle128;
}
// Offset in the tile [rows, columns] of a product that sums over the columns: those from 16 step on.
template <int kRows>
__device__ constexpr uint64_t column_offset(int step) {
  return (step / 4 * kRows * kRowBytes + step % 4 * 32) >> 4;
}
// Offset in the tile [rows, columns] of a product that sums over the rows: those from 16 step on.
__device__ constexpr uint64_t row_offset(int step) { return (step * 16 * kRowBytes) >> 4; }

// Before the first product of a group that follows other accesses to its registers.
__device__ inline void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when all but the last kPending groups are done.
template <int kPending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler moves no access to these registers across this point: products in flight read and write them.
template <int kN>
__device__ inline void settle(float (&c)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
  }
}
template <int kN>
__device__ inline void settle(uint32_t (&a)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(a[n][e])::"memory");
  }
}

// c [64, 8 kN] = (add ? c : 0) + a b for one step of 16. A warp holds 16 rows of c, and of a where it is in
// registers, as with mma_m16n8k16().
#define TESSERA_SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define TESSERA_SUMS_8(n)                                                                              \
  TESSERA_SUMS(n), TESSERA_SUMS(n + 1), TESSERA_SUMS(n + 2), TESSERA_SUMS(n + 3), TESSERA_SUMS(n + 4), \
      TESSERA_SUMS(n + 5), TESSERA_SUMS(n + 6), TESSERA_SUMS(n + 7)
#define TESSERA_NAMES_32                                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%" \
  "28,%29,"                                                                                                 \
  "%30,%31"
#define TESSERA_NAMES_64                                                                                   \
  TESSERA_NAMES_32                                                                                         \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%" \
  "57,%58,%59,"                                                                                            \
  "%60,%61,%62,%63"

// a and b in shared memory, both with sums over their columns.
__device__ inline void multiply_step(float (&c)[8][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TESSERA_NAMES_32
      "}, %32, %33, add, 1, 1, 0, 0;}"
      : TESSERA_SUMS_8(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_step(float (&c)[16][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TESSERA_NAMES_64
      "}, %64, %65, add, 1, 1, 0, 0;}"
      : TESSERA_SUMS_8(0), TESSERA_SUMS_8(8)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// a in registers, b in shared memory with sums over its rows. Adds.
__device__ inline void multiply_step(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TESSERA_NAMES_32
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : TESSERA_SUMS_8(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void multiply_step(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TESSERA_NAMES_64
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : TESSERA_SUMS_8(0), TESSERA_SUMS_8(8)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef TESSERA_SUMS
#undef TESSERA_SUMS_8
#undef TESSERA_NAMES_32
#undef TESSERA_NAMES_64

// c [64, 8 kN] = a b^T over kE columns; a of a tile of kRowsA rows, 64 of them, b all kRowsB = 8 kN rows of
// another.
template <int kE, int kRowsA, int kN>
__device__ inline void multiply_transposed(float (&c)[kN][4], uint64_t a, uint64_t b) {
#pragma unroll
  for (int step = 0; step < kE / 16; ++step)
    multiply_step(c, a + column_offset<kRowsA>(step), b + column_offset<8 * kN>(step), step > 0);
}
// c [64, 8 kN] += a b for a [64, 16 kK] in registers and b [16 kK, 8 kN].
template <int kK, int kN>
__device__ inline void multiply_add(float (&c)[kN][4], const uint32_t (&a)[kK][4], uint64_t b) {
#pragma unroll
  for (int step = 0; step < kK; ++step) multiply_step(c, a[step], b + row_offset(step));
}

}  // namespace tessera::cuda::hopper
