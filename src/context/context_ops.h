// Ops of a rank in a team (context_team.h): attention over the tokens of all members, whose operands hold
// this rank's tokens. Everything else is forwarded to other Ops.
//
//   attention            q, k, v of own tokens, all heads -> all-to-all -> of all tokens, own heads
//                        attention of own heads; o -> all-to-all -> of own tokens, all heads
//   attention_backward   the same with do, o and q, k, v; dq, dk, dv come back
//
// The gradient of sinks is that of the rank's own heads, zero for others: the sum over ranks is complete.
//
// lse has the same size either way: it stays with the heads, [H / size, size T] instead of [H, T].
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "context/context_all_to_all.h"
#include "ops/forwarding_ops.h"

namespace tessera {

class ContextOps final : public ForwardingOps {
 public:
  // On the host.
  ContextOps(Ops& ops, int64_t size) : ForwardingOps(ops), size_(size) {}

  // Without an all-to-all nothing moves between ranks: for planning, where only sizes count. It must outlive
  // this.
  void connect(ContextAllToAll& all_to_all) { all_to_all_ = &all_to_all; }
  // The bounds of the sequences of all members' tokens in the next pass (slice_batch.h).
  void set_sequences(std::span<const int32_t> cu_seqlens) {
    cu_seqlens_.assign(cu_seqlens.begin(), cu_seqlens.end());
  }

  // The most bytes of own tokens in one all-to-all of `size` members.
  static int64_t all_to_all_bytes(const AttentionShape& shape, int64_t size, int64_t max_tokens, DType dtype);

  int64_t workspace_bytes(const OpsLimits& limits) const override;
  void bind_workspace(std::span<std::byte> workspace) override;

  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override;
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override;
  // With sinks alone: causal, inside the sequences of fused rows.
  void general_attention(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                         TensorView lse_HT) override;
  void general_attention_backward(ConstTensorView do_THE, const AttentionInputs& inputs,
                                  ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                                  const AttentionGradients& gradients) override;
  // Generation is not shared out.
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, ConstTensorView sinks_H,
                        TensorView o_THE) override;

 private:
  // For all tokens and this rank's heads; d_o and dqkv exist only in training.
  struct Buffers {
    TensorView qkv, o, d_o, dqkv;
  };
  Buffers take_buffers(const AttentionShape& own_heads, int64_t num_tokens, DType dtype, bool training);
  void give_back_buffers() { ForwardingOps::bind_workspace(workspace_); }
  // Bring the operands of all tokens, call compute(own heads, buffers, lse), and take the results back.
  template <typename Compute>
  void attend(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView o_THE, TensorView lse_HT,
              const Compute& compute);
  template <typename Compute>
  void attend_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                       ConstTensorView lse_HT, const AttentionShape& shape, TensorView dqkv_TQ,
                       const Compute& compute);
  // The part of a vector [H] that belongs to this rank's heads.
  RowRange own_part(const AttentionShape& own_heads) const;
  // `all_heads`: of qkv, or of o.
  void to_heads(ConstTensorView own, std::span<const RowSection> all_heads, TensorView shared,
                const char* what);
  void to_tokens(ConstTensorView shared, std::span<const RowSection> all_heads, TensorView own,
                 const char* what);

  int64_t size_;
  ContextAllToAll* all_to_all_ = nullptr;
  std::vector<int32_t> cu_seqlens_;
  std::span<std::byte> workspace_;  // shared by attention and the other Ops
};

}  // namespace tessera
