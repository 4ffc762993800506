// Looks up rows of a table by token id, and adds gradients back into the table; moves the rows that an
// operation is limited to to the beginning of a matrix and back.
//
//   forward   x_t = table_ids[t]                 (bitwise copy)
//   backward  dtable_ids[t] += dx_t              (F32; for every row of the table in the order of t), except
//             for ids[t] = padding_id, whose row receives nothing (torch.nn.Embedding's padding_idx)
//
// table_VD [V, D] and x_TD, dx_TD [T, D] are BF16 or F32; dtable_VD is F32. Ids are in [0, V), checked by the
// caller. The order of the sums is fixed: results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

inline constexpr int32_t kNoPaddingId = -1;

void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD, ThreadPool& pool);

void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                        TensorView dtable_VD, ThreadPool& pool);

// x_i = x_rows[i] in place, bitwise; `rows` ascend. Rows after the last of these keep what they had.
void gather_rows(std::span<const int32_t> rows, TensorView x_TD);

// The reverse: x_rows[i] = x_i in place; all other rows become zero.
void scatter_rows(std::span<const int32_t> rows, TensorView x_TD);

}  // namespace tessera
