// Elements in pieces: accesses of 16 bytes where widths and addresses allow, otherwise of one element.
#pragma once

#include <initializer_list>

#include "devices/cuda/launch.cuh"
#include "devices/cuda/numbers.cuh"

namespace tessera::cuda {

// kWidth is 1 or a multiple of kVector<T>; then `from` and `to` are multiples of 16 bytes.
template <int kWidth, typename T>
__device__ inline void load_piece(const T* from, float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    values[0] = load(*from);
  } else {
    constexpr int kPart = kVector<T>;
    static_assert(kWidth % kPart == 0);
#pragma unroll
    for (int begin = 0; begin < kWidth; begin += kPart) {
      float part[kPart];
      load_vector(from + begin, part);
#pragma unroll
      for (int i = 0; i < kPart; ++i) values[begin + i] = part[i];
    }
  }
}
template <int kWidth, typename T>
__device__ inline void store_piece(T* to, const float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    store(to, values[0]);
  } else {
    constexpr int kPart = kVector<T>;
    static_assert(kWidth % kPart == 0);
#pragma unroll
    for (int begin = 0; begin < kWidth; begin += kPart) {
      float part[kPart];
#pragma unroll
      for (int i = 0; i < kPart; ++i) part[i] = values[begin + i];
      store_vector(to + begin, part);
    }
  }
}

// The value that store() would leave.
__device__ inline float rounded(float value, const float* /*type*/) { return value; }
__device__ inline float rounded(float value, const bf16* /*type*/) { return low_of(pack_bf16(value, 0.0f)); }

// Whether rows of `width` elements at these addresses (null: none) consist of pieces of kVector<A>.
template <typename A>
bool has_pieces(int64_t width, std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  return width % kVector<A> == 0;
}

// Calls run.operator()<kWidth>() with kVector<A> if rows of `width` elements at these addresses consist of such pieces, with 1
// otherwise.
template <typename A, typename Run>
void with_width(int64_t width, std::initializer_list<const void*> addresses, const Run& run) {
  has_pieces<A>(width, addresses) ? run.template operator()<kVector<A>>() : run.template operator()<1>();
}

// Blocks of a one-dimensional grid.
inline unsigned num_blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>(divide_up(count, per_block));
}

// Threads of a block that shares `pieces` pieces: whole warps, at most `most`.
inline unsigned num_threads(int64_t pieces, int64_t most) {
  const int64_t whole = divide_up(pieces > 0 ? pieces : 1, 32) * 32;
  return static_cast<unsigned>(whole < most ? whole : most);
}

}  // namespace tessera::cuda
