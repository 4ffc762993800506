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
  TESSERA_CHECK(shape.head_dim == 2 * table.half_dim && table.cos.size() == table.sin.size(),
                "head_dim {}, table of half_dim {}, {} cos, {} sin", shape.head_dim, table.half_dim,
                table.cos.size(), table.sin.size());
  for (const int32_t position : positions) {
    TESSERA_CHECK(position >= 0 && (position + int64_t{1}) * table.half_dim <= std::ssize(table.cos),
                  "position {} outside the table of {} values", position, table.cos.size());
  }
  rope_table().chosen().rotate(qkv_TQ, shape, positions, table, inverse, pool);
}

}  // namespace tessera
