#include "kernels/rope/rope.h"

#include "kernels/rope/rope_impl.h"

namespace tessera {

const DispatchTable<RopeKernels>& rope_table() {
  static const DispatchTable<RopeKernels> table("rope", concat(rope_hwy(), rope_ref()));
  return table;
}

void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
          const RopeTable& table, bool inverse, ThreadPool& pool) {
  TESSERA_CHECK(qkv_TQ.shape() == (Shape{std::ssize(positions), shape.qkv_width()}), "qkv {}, {} positions",
                qkv_TQ.shape().to_string(), positions.size());
  TESSERA_CHECK(shape.head_dim >= 2 * table.cos.dim(1) && table.cos.shape() == table.sin.shape() &&
                    (table.query_scale.empty() || table.query_scale.shape() == Shape{table.cos.dim(0)}),
                "head_dim {}, cos {}, sin {}, query scale {}", shape.head_dim, table.cos.shape().to_string(),
                table.sin.shape().to_string(), table.query_scale.shape().to_string());
  for (const int32_t position : positions) {
    TESSERA_CHECK(0 <= position && position < table.cos.dim(0), "position {} outside the table of {}",
                  position, table.cos.dim(0));
  }
  rope_table().chosen().rotate(qkv_TQ, shape, positions, table, inverse, pool);
}

}  // namespace tessera
