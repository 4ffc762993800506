#include "kernels/activation_type.h"
#include "kernels/rope/rope_impl.h"

namespace tessera {
namespace {

void rotate_ref(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
                const RopeTable& table, bool inverse, ThreadPool& /*pool*/) {
  const int64_t half = table.cos.dim(1);
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < qkv_TQ.dim(0); ++t) {
      const float* cos = table.cos.as<float>() + positions[static_cast<size_t>(t)] * half;
      const float* sin = table.sin.as<float>() + positions[static_cast<size_t>(t)] * half;
      for (int64_t head = 0; head < shape.num_heads + shape.num_key_value_heads; ++head) {
        A* x = qkv_TQ.as<A>() + t * shape.qkv_width() + head * shape.head_dim;
        const bool is_scaled = !table.query_scale.empty() && head < shape.num_heads;
        const double factor =
            is_scaled ? table.query_scale.as<float>()[positions[static_cast<size_t>(t)]] : 1;
        for (int64_t i = 0; i < half; ++i) {
          A& first = x[table.interleaved ? 2 * i : i];
          A& second = x[table.interleaved ? 2 * i + 1 : i + half];
          const double a = factor * to_float(first), b = factor * to_float(second);
          const double c = cos[i], s = inverse ? -sin[i] : sin[i];
          first = from_float<A>(static_cast<float>(a * c - b * s));
          second = from_float<A>(static_cast<float>(b * c + a * s));
        }
        for (int64_t i = 2 * half; is_scaled && i < shape.head_dim; ++i)
          x[i] = from_float<A>(static_cast<float>(factor * to_float(x[i])));
      }
    }
  });
}

}  // namespace

std::vector<Implementation<RopeKernels>> rope_ref() { return {{"ref", Isa::kRef, {.rotate = rotate_ref}}}; }

}  // namespace tessera
