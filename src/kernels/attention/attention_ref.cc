#include <algorithm>
#include <cmath>

#include "kernels/activation_type.h"
#include "kernels/attention/attention_impl.h"
#include "kernels/attention/general_attention_ref.h"

namespace tessera {
namespace {

// First key that query t sees; positions are relative to the start of the keys.
int64_t first_key(const AttentionShape& shape, int64_t t) {
  return shape.sliding_window == 0 ? 0 : std::max<int64_t>(0, t - shape.sliding_window + 1);
}

template <typename A>
double dot(const A* a, const A* b, int64_t E) {
  double sum = 0;
  for (int64_t i = 0; i < E; ++i) sum += static_cast<double>(to_float(a[i])) * to_float(b[i]);
  return sum;
}

// The score of a product q . k, and the derivative of its soft cap.
double score_of(const AttentionShape& shape, double product) {
  const double score = shape.scale * product;
  return shape.softcap == 0 ? score : shape.softcap * std::tanh(score / shape.softcap);
}
double cap_slope(const AttentionShape& shape, double product) {
  if (shape.softcap == 0) return 1;
  const double t = std::tanh(shape.scale * product / shape.softcap);
  return 1 - t * t;
}

// Attention of one query over keys [begin, end), whose key and value rows are `stride` elements apart;
// weighted_E is temporary; the sink is that of the head, -infinity without one. Returns lse.
template <typename A>
double attend(const A* q, const A* k, const A* v, int64_t stride, int64_t begin, int64_t end,
              const AttentionShape& shape, A* o, double* weighted_E, double sink = -HUGE_VAL) {
  const int64_t E = shape.head_dim;
  const auto score = [&](int64_t s) { return score_of(shape, dot(q, k + s * stride, E)); };
  double max = sink;
  for (int64_t s = begin; s < end; ++s) max = std::max(max, score(s));
  double sum = std::exp(sink - max);
  for (int64_t s = begin; s < end; ++s) sum += std::exp(score(s) - max);
  std::fill_n(weighted_E, E, 0.0);
  for (int64_t s = begin; s < end; ++s) {
    const double p = std::exp(score(s) - max) / sum;
    for (int64_t i = 0; i < E; ++i) weighted_E[i] += p * to_float(v[s * stride + i]);
  }
  for (int64_t i = 0; i < E; ++i) o[i] = from_float<A>(static_cast<float>(weighted_E[i]));
  return max + std::log(sum);
}

// Sums for the calling thread, [2 E].
double* thread_sums(std::span<std::byte> scratch, int64_t E) {
  return reinterpret_cast<double*>(scratch.data()) + ThreadPool::thread_index() * 2 * E;
}

void forward_ref(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t E = shape.head_dim, H = shape.num_heads, G = shape.num_key_value_heads;
  const int64_t T = qkv_TQ.dim(0), Q = shape.qkv_width();
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    const A* qkv = qkv_TQ.as<A>();
    for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
      const int64_t start = cu_seqlens[n], length = cu_seqlens[n + 1] - start;
      pool.parallel_for(H * length, [&](int64_t index) {
        const int64_t h = index / length, t = index % length, g = h / (H / G);
        const double lse = attend(qkv + (start + t) * Q + h * E, qkv + start * Q + (H + g) * E,
                                  qkv + start * Q + (H + G + g) * E, Q, first_key(shape, t), t + 1, shape,
                                  o_THE.as<A>() + ((start + t) * H + h) * E, thread_sums(scratch, E));
        if (!lse_HT.empty()) lse_HT.as<float>()[h * T + start + t] = static_cast<float>(lse);
      });
    }
  });
}

// The pairs (query t, key s) of one sequence and the factors of their gradients.
template <typename A>
struct BackwardPairs {
  const A *d_o, *qkv, *o;
  const float* lse;
  AttentionShape shape;
  int64_t T, start;

  const A* q(int64_t h, int64_t t) const { return row(t) + h * shape.head_dim; }
  const A* k(int64_t g, int64_t s) const { return row(s) + (shape.num_heads + g) * shape.head_dim; }
  const A* v(int64_t g, int64_t s) const { return k(g + shape.num_key_value_heads, s); }
  const A* do_row(int64_t h, int64_t t) const { return d_o + out(h, t); }
  double p(int64_t h, int64_t g, int64_t t, int64_t s) const {
    return std::exp(score_of(shape, product(h, g, t, s)) - lse[h * T + start + t]);
  }
  double ds(int64_t h, int64_t g, int64_t t, int64_t s) const {
    if (first_key(shape, t) == t) return 0;
    const double delta = dot(o + out(h, t), do_row(h, t), shape.head_dim);
    return p(h, g, t, s) * (dot(do_row(h, t), v(g, s), shape.head_dim) - delta) *
           cap_slope(shape, product(h, g, t, s));
  }

 private:
  double product(int64_t h, int64_t g, int64_t t, int64_t s) const {
    return dot(q(h, t), k(g, s), shape.head_dim);
  }
  const A* row(int64_t t) const { return qkv + (start + t) * shape.qkv_width(); }
  int64_t out(int64_t h, int64_t t) const { return ((start + t) * shape.num_heads + h) * shape.head_dim; }
};

template <typename A>
void backward_sequence(const BackwardPairs<A>& pairs, int64_t length, A* dqkv, std::span<std::byte> scratch,
                       ThreadPool& pool) {
  const AttentionShape& shape = pairs.shape;
  const int64_t E = shape.head_dim, H = shape.num_heads, G = shape.num_key_value_heads;
  const auto store = [E](const double* sums, A* out) {
    for (int64_t i = 0; i < E; ++i) out[i] = from_float<A>(static_cast<float>(sums[i]));
  };
  pool.parallel_for(length, [&](int64_t row) {
    A* out = dqkv + (pairs.start + row) * shape.qkv_width();
    double* dq_or_dk = thread_sums(scratch, E);
    double* dv = dq_or_dk + E;
    for (int64_t h = 0; h < H; ++h) {
      const int64_t g = h / (H / G);
      std::fill_n(dq_or_dk, E, 0.0);
      for (int64_t s = first_key(shape, row); s <= row; ++s) {
        const double ds = pairs.ds(h, g, row, s);
        for (int64_t i = 0; i < E; ++i) dq_or_dk[i] += shape.scale * ds * to_float(pairs.k(g, s)[i]);
      }
      store(dq_or_dk, out + h * E);
    }
    const int64_t last = shape.sliding_window == 0 ? length : std::min(length, row + shape.sliding_window);
    for (int64_t g = 0; g < G; ++g) {
      std::fill_n(dq_or_dk, 2 * E, 0.0);
      for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h) {
        for (int64_t t = row; t < last; ++t) {
          const double p = pairs.p(h, g, t, row), ds = pairs.ds(h, g, t, row);
          for (int64_t i = 0; i < E; ++i) {
            dq_or_dk[i] += shape.scale * ds * to_float(pairs.q(h, t)[i]);
            dv[i] += p * to_float(pairs.do_row(h, t)[i]);
          }
        }
      }
      store(dq_or_dk, out + (H + g) * E);
      store(dv, out + (H + G + g) * E);
    }
  });
}

void backward_ref(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                  ConstTensorView lse_HT, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                  TensorView dqkv_TQ, std::span<std::byte> scratch, ThreadPool& pool) {
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
      const BackwardPairs<A> pairs{do_THE.as<A>(), qkv_TQ.as<A>(), o_THE.as<A>(), lse_HT.as<float>(),
                                   shape,          qkv_TQ.dim(0),  cu_seqlens[n]};
      backward_sequence(pairs, cu_seqlens[n + 1] - cu_seqlens[n], dqkv_TQ.as<A>(), scratch, pool);
    }
  });
}

void cached_ref(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache, TensorView v_cache,
                int64_t cache_length, ConstTensorView sinks_H, TensorView o_THE, std::span<std::byte> scratch,
                ThreadPool& pool) {
  const int64_t E = shape.head_dim, H = shape.num_heads, G = shape.num_key_value_heads;
  const int64_t Q = shape.qkv_width();
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    const A* qkv = qkv_TQ.as<A>();
    for (int64_t t = 0; t < qkv_TQ.dim(0); ++t) {
      std::copy_n(qkv + t * Q + H * E, G * E, k_cache.as<A>() + (cache_length + t) * G * E);
      std::copy_n(qkv + t * Q + (H + G) * E, G * E, v_cache.as<A>() + (cache_length + t) * G * E);
    }
    pool.parallel_for(qkv_TQ.dim(0) * H, [&](int64_t index) {
      const int64_t t = index / H, h = index % H, g = h / (H / G);
      attend(qkv + t * Q + h * E, k_cache.as<A>() + g * E, v_cache.as<A>() + g * E, G * E,
             first_key(shape, cache_length + t), cache_length + t + 1, shape, o_THE.as<A>() + (t * H + h) * E,
             thread_sums(scratch, E), sinks_H.empty() ? -HUGE_VAL : to_float(sinks_H.as<A>()[h]));
    });
  });
}

}  // namespace

std::vector<Implementation<AttentionKernels>> attention_ref() {
  return {{"ref",
           Isa::kRef,
           {.forward = forward_ref,
            .backward = backward_ref,
            .cached = cached_ref,
            .general_forward = general_forward_ref,
            .general_backward = general_backward_ref}}};
}

}  // namespace tessera
