// The tensor cores' instructions and asynchronous copies into shared memory, for compute capability 8.0 and later.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tessera::cuda {

// c += a b for a [16, 16] and b [16, 8] in BF16, c [16, 8] in float32. With g = lane / 4 and i = lane % 4 a lane holds
//   a: [0] row g, columns 2i, 2i+1   [1] row g+8, the same   [2] row g, columns 2i+8, 2i+9   [3] row g+8, the same
//   b: [0] rows 2i, 2i+1 of column g   [1] rows 2i+8, 2i+9 of column g
//   c: [0], [1] row g, columns 2i, 2i+1   [2], [3] row g+8, the same
__device__ inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements: lane 8 m + r passes the address of row r (16 bytes) of matrix m in shared
// memory, and to[m] gets of matrix m columns 2i, 2i+1 of row g.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
// Loads the transposed matrices: to[m] gets rows 2i, 2i+1 of column g.
__device__ inline void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Starts a copy of 16 bytes from global to shared memory, or of zeros where `exists` is false (`from` must be a valid
// address all the same). Copies are counted in groups: commit_copies() ends one, wait_for_copies<N>() returns when all
// but the last N of this thread's groups have arrived.
__device__ inline void copy_16_bytes(void* to, const void* from, bool exists) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// 2^x, with a relative error of 2^-22.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tessera::cuda
