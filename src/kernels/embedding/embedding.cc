#include "kernels/embedding/embedding.h"

#include <cstring>

#include "kernels/activation_type.h"

namespace tessera {
namespace {

void check_shapes(std::span<const int32_t> ids, ConstTensorView table_VD, ConstTensorView x_TD) {
  TESSERA_CHECK(table_VD.shape().rank() == 2 &&
                    x_TD.shape() == (Shape{static_cast<int64_t>(ids.size()), table_VD.dim(1)}),
                "{} ids, table {}, rows {}", ids.size(), table_VD.shape().to_string(),
                x_TD.shape().to_string());
}

}  // namespace

void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD, ThreadPool& pool) {
  check_shapes(ids, table_VD, x_TD);
  TESSERA_CHECK(table_VD.dtype() == x_TD.dtype(), "table {}, rows {}", dtype_name(table_VD.dtype()),
                dtype_name(x_TD.dtype()));
  const int64_t row_bytes = table_VD.dim(1) * dtype_bytes(table_VD.dtype());
  constexpr int64_t kRows = 64;  // a few 100 KB to copy: worth waking a thread for
  pool.parallel_blocks(static_cast<int64_t>(ids.size()), kRows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(x_TD.bytes() + t * row_bytes, table_VD.bytes() + ids[static_cast<size_t>(t)] * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  });
}

// Each task owns some columns of the whole table, so no two write the same element and every element receives
// its terms in the order of t.
void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                        TensorView dtable_VD, ThreadPool& pool) {
  check_shapes(ids, dtable_VD, dx_TD);
  const int64_t D = dtable_VD.dim(1);
  constexpr int64_t kColumns = 128;  // 512 bytes of a table row: whole cache lines, long enough to prefetch
  with_activation_type(dx_TD.dtype(), [&]<typename A>(A) {
    const A* dx = dx_TD.as<A>();
    float* dtable = dtable_VD.as<float>();
    pool.parallel_blocks(D, kColumns, [&](int64_t begin, int64_t end) {
      for (size_t t = 0; t < ids.size(); ++t) {
        if (ids[t] == padding_id) continue;
        const A* from = dx + static_cast<int64_t>(t) * D;
        float* to = dtable + ids[t] * D;
        for (int64_t d = begin; d < end; ++d) to[d] += to_float(from[d]);
      }
    });
  });
}

// Rows ascend, so a row is read before it is overwritten.
void gather_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const int64_t row_bytes = x_TD.dim(1) * dtype_bytes(x_TD.dtype());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == static_cast<int32_t>(i)) continue;
    std::memcpy(x_TD.bytes() + static_cast<int64_t>(i) * row_bytes, x_TD.bytes() + rows[i] * row_bytes,
                static_cast<size_t>(row_bytes));
  }
}

// Last row first.
void scatter_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const int64_t row_bytes = x_TD.dim(1) * dtype_bytes(x_TD.dtype());
  auto remaining = static_cast<int64_t>(rows.size());
  for (int64_t t = x_TD.dim(0) - 1; t >= 0; --t) {
    std::byte* destination = x_TD.bytes() + t * row_bytes;
    if (remaining > 0 && rows[static_cast<size_t>(remaining - 1)] == t) {
      --remaining;
      if (remaining == t) return;  // this row and all before it are already in place
      std::memcpy(destination, x_TD.bytes() + remaining * row_bytes, static_cast<size_t>(row_bytes));
    } else {
      std::memset(destination, 0, static_cast<size_t>(row_bytes));
    }
  }
}

}  // namespace tessera
