// The two kernels of attention backward on Hopper cards: dk and dv by blocks of keys, over all query heads of
// a key-value head, and dq by blocks of queries, so that no two blocks add to the same element.
#pragma once

#include <cuda.h>

#include "devices/cuda/attention/problem.cuh"

namespace tessera::cuda::hopper {

inline constexpr int kBackwardStep = 64;  // queries of the first kernel, keys of the second

// Tiles of q, k and v, and of do: of kAttentionRows rows, and of kBackwardStep.
struct HeadTiles {
  CUtensorMap wide, narrow;
  CUtensorMap wide_d_o, narrow_d_o;
};

void attention_backward_kv(const AttentionProblem& problem, const AttentionGradients& gradients,
                           const HeadTiles& tiles, CudaStream stream);
void attention_backward_q(const AttentionProblem& problem, const AttentionGradients& gradients,
                          const HeadTiles& tiles, CudaStream stream);

}  // namespace tessera::cuda::hopper
