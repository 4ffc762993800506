// Barriers in shared memory, and Hopper's copies of tiles, which arrive at them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "devices/cuda/attention/hopper/wgmma.cuh"

namespace tessera::cuda::hopper {

// A phase ends when `count` threads have arrived, and every byte that they announced. Phases have parities 0,
// 1, 0, ...
struct Barrier {
  uint64_t state;

  __device__ void init(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(count)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  __device__ void arrive_expecting(int num_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
                 "r"(num_bytes)
                 : "memory");
  }
  // Returns when the phase of this parity has ended; at once for the phase before the first one, of parity 1.
  __device__ void wait(int parity) {
    uint32_t done;
    do {
      asm volatile(
          "{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, "
          "done;}"
          : "=r"(done)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    } while (done == 0);
  }
};
// After the barriers are initialised, before __syncthreads(): copies see them.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
// Between this thread's ordinary accesses to shared memory and copies or products of it that a barrier orders
// after them.
__device__ inline void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A slot of a ring that is filled and emptied in turn, and the parity of its phase.
template <int kSlots>
struct RingPlace {
  int slot = 0, parity = 0;

  __device__ void advance() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

// Starts to copy kRows rows of one head from `row` on as a tile of kE columns, zeros beyond the array; the
// bytes arrive at the barrier. One thread calls this.
template <int kRows, int kE>
inline constexpr int kTileBytes = kRows* kE * 2;
template <int kRows, int kE>
__device__ inline void start_tile(bf16* tile, const CUtensorMap& map, int head, int row, Barrier& barrier) {
#pragma unroll
  for (int panel = 0; panel < kE / kPanelColumns; ++panel) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
        "%4}], [%5];" ::"r"(shared_address(tile + panel * kRows * kPanelColumns)),
        "l"(&map), "r"(panel * kPanelColumns), "r"(head), "r"(row), "r"(shared_address(&barrier))
        : "memory");
  }
}

// The registers of each thread of this warpgroup from now on; the kernel's bound times its threads in sum.
template <int kRegisters>
__device__ inline void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tessera::cuda::hopper
