#include "kernels/attention/general_attention_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/activation_type.h"
#include "kernels/attention/attention_layout.h"

namespace tessera {
namespace {

// The pairs of one call.
template <typename A>
struct GeneralPairs {
  const AttentionInputs& inputs;
  AttentionShape shape;
  AttentionReach reach;

  GeneralPairs(const AttentionInputs& all, const AttentionShape& heads)
      : inputs(all), shape(heads), reach(AttentionReach::of(heads, all.causal)) {}

  int64_t group() const { return shape.num_heads / shape.num_key_value_heads; }
  const A* q(int64_t h, int64_t t) const {
    return at(inputs.q_rows, t, inputs.q_column + h * shape.head_dim);
  }
  const A* k(int64_t h, int64_t s) const {
    return at(inputs.kv_rows, s, inputs.k_column + h / group() * shape.head_dim);
  }
  const A* v(int64_t h, int64_t s) const {
    return at(inputs.kv_rows, s, inputs.v_column + h / group() * shape.head_dim);
  }
  double dot(const A* a, const A* b) const {
    double sum = 0;
    for (int64_t i = 0; i < shape.head_dim; ++i) sum += static_cast<double>(to_float(a[i])) * to_float(b[i]);
    return sum;
  }
  struct Keys {
    int64_t first, last;  // that a query sees
    int64_t shift;        // from the row of a query to that of the key at its position
    int64_t begin;        // of the sequence
  };
  // Calls body(t, keys) for every query t.
  template <typename Body>
  void for_each_query(const Body& body) const {
    for (size_t n = 0; n + 1 < inputs.cu_queries.size(); ++n) {
      const int64_t key_begin = inputs.cu_keys[n], key_end = inputs.cu_keys[n + 1];
      const int64_t shift = key_end - inputs.cu_queries[n + 1];
      for (int64_t t = inputs.cu_queries[n]; t < inputs.cu_queries[n + 1]; ++t) {
        body(t, Keys{std::max(key_begin, t + shift - reach.before + 1),
                     std::min(key_end, t + shift + reach.ahead + 1), shift, key_begin});
      }
    }
  }
  // m_ts, for the keys of a sequence from `key_begin` on.
  double factor(int64_t h, int64_t t, int64_t s, int64_t key_begin) const {
    const Dropout* const dropout = inputs.dropout;
    if (dropout == nullptr) return 1;
    const uint32_t number = dropout_number(dropout->site, dropout->tokens[static_cast<size_t>(t)],
                                           dropout_element(h, s - key_begin));
    return number < dropout->threshold() ? 0 : dropout->scale();
  }
  double score(int64_t h, int64_t t, int64_t s, int64_t shift) const {
    const double capped = shape.softcap == 0 ? product(h, t, s) : shape.softcap * tanh_of(h, t, s);
    if (inputs.bias == nullptr) return capped;
    const int64_t bucket = inputs.bias->bucket(s - t - shift);
    return capped + to_float(inputs.bias->table_BH.template as<A>()[bucket * shape.num_heads + h]);
  }
  double sink(int64_t h) const {
    return inputs.sinks_H.empty() ? -HUGE_VAL : to_float(inputs.sinks_H.as<A>()[h]);
  }
  // The derivative of the soft cap.
  double cap_slope(int64_t h, int64_t t, int64_t s) const {
    return shape.softcap == 0 ? 1 : 1 - tanh_of(h, t, s) * tanh_of(h, t, s);
  }

 private:
  double product(int64_t h, int64_t t, int64_t s) const { return shape.scale * dot(q(h, t), k(h, s)); }
  double tanh_of(int64_t h, int64_t t, int64_t s) const {
    return std::tanh(product(h, t, s) / shape.softcap);
  }
  static const A* at(ConstTensorView rows, int64_t row, int64_t column) {
    return rows.as<A>() + row * rows.dim(1) + column;
  }
};

}  // namespace

void general_forward_ref(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                         TensorView lse_HT, std::span<std::byte> /*scratch*/, ThreadPool& pool) {
  const int64_t H = shape.num_heads, E = shape.head_dim, T = inputs.q_rows.dim(0);
  with_activation_type(inputs.q_rows.dtype(), [&]<typename A>(A) {
    const GeneralPairs<A> pairs(inputs, shape);
    pool.parallel_for(H, [&](int64_t h) {
      pairs.for_each_query([&](int64_t t, const auto& keys) {
        const auto [first, last, shift, key_begin] = keys;
        double max = pairs.sink(h);
        for (int64_t s = first; s < last; ++s) max = std::max(max, pairs.score(h, t, s, shift));
        double sum = std::exp(pairs.sink(h) - max);
        for (int64_t s = first; s < last; ++s) sum += std::exp(pairs.score(h, t, s, shift) - max);
        for (int64_t i = 0; i < E; ++i) {
          double value = 0;
          for (int64_t s = first; s < last; ++s)
            value += pairs.factor(h, t, s, key_begin) * std::exp(pairs.score(h, t, s, shift) - max) / sum *
                     to_float(pairs.v(h, s)[i]);
          o_THE.as<A>()[(t * H + h) * E + i] = from_float<A>(static_cast<float>(value));
        }
        if (!lse_HT.empty()) lse_HT.as<float>()[h * T + t] = static_cast<float>(max + std::log(sum));
      });
    });
  });
}

void general_backward_ref(ConstTensorView do_THE, const AttentionInputs& inputs, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          const AttentionGradients& gradients, std::span<std::byte> /*scratch*/,
                          ThreadPool& /*pool*/) {
  const int64_t H = shape.num_heads, E = shape.head_dim, G = shape.num_key_value_heads;
  const int64_t T = inputs.q_rows.dim(0), S = inputs.kv_rows.dim(0);
  const auto index = [E](int64_t row, int64_t heads, int64_t head) {
    return static_cast<size_t>((row * heads + head) * E);
  };
  std::vector<double> dq(index(T, H, 0)), dk(index(S, G, 0)), dv(index(S, G, 0));
  const int64_t table_elements = gradients.dtable_BH.empty() ? 0 : gradients.dtable_BH.num_elements();
  std::vector<double> dtable(static_cast<size_t>(table_elements));
  std::vector<double> dsinks(static_cast<size_t>(gradients.dsinks_H.empty() ? 0 : H));
  with_activation_type(inputs.q_rows.dtype(), [&]<typename A>(A) {
    const GeneralPairs<A> pairs(inputs, shape);
    for (int64_t h = 0; h < H; ++h) {
      const int64_t g = h / pairs.group();
      pairs.for_each_query([&](int64_t t, const auto& keys) {
        const auto [first, last, shift, key_begin] = keys;
        const A* const d_o = do_THE.as<A>() + index(t, H, h);
        const double delta = pairs.dot(o_THE.as<A>() + index(t, H, h), d_o);
        if (!dsinks.empty())
          dsinks[static_cast<size_t>(h)] -= std::exp(pairs.sink(h) - lse_HT.as<float>()[h * T + t]) * delta;
        for (int64_t s = first; s < last; ++s) {
          const double p = std::exp(pairs.score(h, t, s, shift) - lse_HT.as<float>()[h * T + t]);
          const bool is_lone = last - first == 1 && inputs.sinks_H.empty();
          const double m = pairs.factor(h, t, s, key_begin);
          const double ds = is_lone ? 0 : p * (m * pairs.dot(d_o, pairs.v(h, s)) - delta);
          const double dproduct = ds * pairs.cap_slope(h, t, s);
          for (int64_t i = 0; i < E; ++i) {
            const auto at = static_cast<size_t>(i);
            dq[index(t, H, h) + at] += shape.scale * dproduct * to_float(pairs.k(h, s)[i]);
            dk[index(s, G, g) + at] += shape.scale * dproduct * to_float(pairs.q(h, t)[i]);
            dv[index(s, G, g) + at] += m * p * to_float(d_o[i]);
          }
          if (!dtable.empty()) dtable[static_cast<size_t>(inputs.bias->bucket(s - t - shift) * H + h)] += ds;
        }
      });
    }
    const auto store = [&](const std::vector<double>& from, int64_t rows, int64_t heads, TensorView to,
                           int64_t column) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < heads * E; ++i)
          to.as<A>()[row * to.dim(1) + column + i] =
              from_float<A>(static_cast<float>(from[index(row, heads, 0) + static_cast<size_t>(i)]));
      }
    };
    store(dq, T, H, gradients.dq_rows, inputs.q_column);
    store(dk, S, G, gradients.dkv_rows, inputs.k_column);
    store(dv, S, G, gradients.dkv_rows, inputs.v_column);
  });
  for (size_t i = 0; i < dtable.size(); ++i) {
    float& sum = gradients.dtable_BH.as<float>()[i];
    sum = static_cast<float>(dtable[i] + (gradients.table_update == Update::kAdd ? sum : 0));
  }
  for (size_t h = 0; h < dsinks.size(); ++h) {
    float& sum = gradients.dsinks_H.as<float>()[h];
    sum = static_cast<float>(dsinks[h] + (gradients.sinks_update == Update::kAdd ? sum : 0));
  }
}

}  // namespace tessera
