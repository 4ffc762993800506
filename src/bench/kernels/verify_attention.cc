#include "bench/kernels/verify_attention.h"

#include "kernels/attention/attention_expected.h"

namespace tessera {
namespace {

constexpr int64_t kSampledTokens = 12;
constexpr int64_t kSampledHeads = 3;
constexpr int64_t kSampledKeyValueHeads = 2;

// Any implementation may be the AMX one.
WeightErrors weight_errors(ConstTensorView qkv_TQ) {
  return qkv_TQ.dtype() == DType::kBF16 ? kAmxErrors : WeightErrors();
}

}  // namespace

void verify_attention(Verifier& verifier, ConstTensorView qkv_TQ, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, ConstTensorView o_THE, ConstTensorView lse_HT) {
  const std::vector<int64_t> tokens = sample_indices(qkv_TQ.dim(0), kSampledTokens);
  for (const int64_t h : sample_indices(shape.num_heads, kSampledHeads)) {
    const ExpectedAttention head(qkv_TQ, shape, cu_seqlens, h, weight_errors(qkv_TQ));
    std::vector<Expected> o(tokens.size() * static_cast<size_t>(shape.head_dim)), lse;
    for (const int64_t t : tokens) lse.push_back(head.forward(t, &o[lse.size() * shape.head_dim]));
    verifier.compare_values("o", o_THE, tokens, head_columns(shape, h), o);
    if (!lse_HT.empty()) verifier.compare_values("lse", lse_HT, {&h, 1}, tokens, lse);
  }
}

void verify_attention_backward(Verifier& verifier, ConstTensorView do_THE, ConstTensorView qkv_TQ,
                               ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                               std::span<const int32_t> cu_seqlens, ConstTensorView dqkv_TQ) {
  const int64_t H = shape.num_heads, G = shape.num_key_value_heads, E = shape.head_dim;
  const std::vector<int64_t> tokens = sample_indices(qkv_TQ.dim(0), kSampledTokens);
  const auto head_of = [&](int64_t h) {
    return ExpectedAttentionBackward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, h,
                                     weight_errors(qkv_TQ));
  };
  const std::vector<Expected> zero(tokens.size() * static_cast<size_t>(E));
  for (const int64_t g : sample_indices(G, kSampledKeyValueHeads)) {
    std::vector<Expected> dk = zero, dv = zero;
    for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h) {
      const ExpectedAttentionBackward head = head_of(h);
      for (size_t i = 0; i < tokens.size(); ++i) {
        const int64_t s = tokens[i], last = head.last_query(s);
        for (int64_t t = s; t <= last; ++t) head.add_pair(t, s, nullptr, &dk[i * E], &dv[i * E]);
      }
    }
    verifier.compare_values("dk", dqkv_TQ, tokens, head_columns(shape, H + g), dk);
    verifier.compare_values("dv", dqkv_TQ, tokens, head_columns(shape, H + G + g), dv);
  }
  for (const int64_t h : sample_indices(H, kSampledHeads)) {
    const ExpectedAttentionBackward head = head_of(h);
    std::vector<Expected> dq = zero;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t t = tokens[i];
      for (int64_t s = head.first_key(t); s <= t; ++s) head.add_pair(t, s, &dq[i * E], nullptr, nullptr);
    }
    verifier.compare_values("dq", dqkv_TQ, tokens, head_columns(shape, h), dq);
  }
}

}  // namespace tessera
