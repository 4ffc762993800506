// Rows of matrices by number (kernels/embedding/embedding.h) on a card. A is bf16 or float; pointers are the
// card's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "devices/cuda/cuda_stream.h"

namespace tessera::cuda {

// to_i = from_rows[i] for `count` rows of D; a negative number means a row of zeros.
template <typename A>
void copy_rows(const A* from, const int32_t* rows, int64_t count, int64_t D, A* to, CudaStream stream);

// Columns [begin, begin + width) of rows, as above, from a matrix [.., from_D] to a matrix [.., to_D].
template <typename A>
void copy_columns(const A* from, int64_t from_D, const int32_t* rows, int64_t count, int64_t width, A* to,
                  int64_t to_D, CudaStream stream);

// The tokens of every id, in ascending order: those of id unique[u] are order[starts[u]] to order[starts[u +
// 1] - 1].
struct TokensById {
  std::vector<int32_t> unique;
  std::vector<int32_t> starts;
  std::vector<int32_t> order;
};
// Groups the tokens by id, without `padding_id`.
TokensById tokens_by_id(std::span<const int32_t> ids, int32_t padding_id);

// dtable_VD[id] += dx_TD[t] in the order of t; the three arrays are those of TokensById.
template <typename A>
void embedding_backward(const A* dx_TD, const int32_t* unique, const int32_t* starts, const int32_t* order,
                        int64_t num_unique, int64_t D, float* dtable_VD, CudaStream stream);

}  // namespace tessera::cuda
