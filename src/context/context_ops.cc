#include "context/context_ops.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {
namespace {

struct RowSections {
  std::array<RowSection, 3> qkv;
  std::array<RowSection, 1> o;
};

RowSections sections_of(const AttentionShape& shape, int64_t team_size, DType dtype) {
  const int64_t of_head = shape.head_dim * dtype_bytes(dtype);
  const RowSection queries = {shape.num_heads * of_head};
  const RowSection keys = {shape.num_key_value_heads * of_head, readers_of_key_value_head(shape, team_size)};
  return {{queries, keys, keys}, {queries}};
}

// Buffers for num_tokens tokens, one after the other.
struct BufferSizes {
  BufferSizes(const AttentionShape& own_heads, int64_t num_tokens, DType dtype)
      : qkv(round_up(num_tokens * own_heads.qkv_width() * dtype_bytes(dtype), kCacheLineBytes)),
        o(round_up(num_tokens * own_heads.num_heads * own_heads.head_dim * dtype_bytes(dtype),
                   kCacheLineBytes)) {}
  int64_t total(bool training) const { return (training ? 2 : 1) * (qkv + o); }

  int64_t qkv, o;
};

}  // namespace

int64_t ContextOps::all_to_all_bytes(const AttentionShape& shape, int64_t size, int64_t max_tokens,
                                     DType dtype) {
  return max_tokens * size * heads_of_member(shape, size).qkv_width() * dtype_bytes(dtype);
}

int64_t ContextOps::workspace_bytes(const OpsLimits& limits) const {
  const AttentionShape own_heads = heads_of_member(limits.attention, size_);
  OpsLimits of_attention = {};
  of_attention.max_tokens = size_ * limits.max_tokens;
  of_attention.max_sequence_length = limits.max_sequence_length;
  of_attention.attention = own_heads;
  of_attention.general_attention = limits.general_attention;
  of_attention.dtype = limits.dtype;
  return std::max(ForwardingOps::workspace_bytes(limits),
                  BufferSizes(own_heads, of_attention.max_tokens, limits.dtype).total(limits.training) +
                      ForwardingOps::workspace_bytes(of_attention));
}

void ContextOps::bind_workspace(std::span<std::byte> workspace) {
  workspace_ = workspace;
  ForwardingOps::bind_workspace(workspace);
}

ContextOps::Buffers ContextOps::take_buffers(const AttentionShape& own_heads, int64_t num_tokens, DType dtype,
                                             bool training) {
  const BufferSizes sizes(own_heads, num_tokens, dtype);
  TESSERA_CHECK(std::ssize(workspace_) >= sizes.total(training), "{} bytes of workspace, {} needed",
                workspace_.size(), sizes.total(training));
  std::byte* next = workspace_.data();
  const auto take = [&](int64_t size_bytes, int64_t width) {
    const TensorView view(next, dtype, {num_tokens, width}, device());
    next += size_bytes;
    return view;
  };
  const int64_t o_width = own_heads.num_heads * own_heads.head_dim;
  Buffers buffers;
  buffers.qkv = take(sizes.qkv, own_heads.qkv_width());
  buffers.o = take(sizes.o, o_width);
  if (training) {
    buffers.dqkv = take(sizes.qkv, own_heads.qkv_width());
    buffers.d_o = take(sizes.o, o_width);
  }
  ForwardingOps::bind_workspace(workspace_.subspan(static_cast<size_t>(next - workspace_.data())));
  return buffers;
}

void ContextOps::to_heads(ConstTensorView own, std::span<const RowSection> all_heads, TensorView shared,
                          const char* what) {
  if (all_to_all_ == nullptr) return;
  all_to_all_->to_shares(all_heads, own.dim(0), own.bytes(), shared.bytes(), {what});
}

void ContextOps::to_tokens(ConstTensorView shared, std::span<const RowSection> all_heads, TensorView own,
                           const char* what) {
  if (all_to_all_ == nullptr) return;
  all_to_all_->to_tokens(all_heads, own.dtype(), own.dim(0), shared.bytes(), own.bytes(), {what});
}

template <typename Compute>
void ContextOps::attend(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView o_THE,
                        TensorView lse_HT, const Compute& compute) {
  const AttentionShape own_heads = heads_of_member(shape, size_);
  const int64_t num_tokens = size_ * qkv_TQ.dim(0);
  const RowSections sections = sections_of(shape, size_, qkv_TQ.dtype());
  const Buffers all = take_buffers(own_heads, num_tokens, qkv_TQ.dtype(), /*training=*/false);
  const TensorView lse = lse_HT.empty() ? lse_HT : lse_HT.reshaped({own_heads.num_heads, num_tokens});
  to_heads(qkv_TQ, sections.qkv, all.qkv, "queries, keys and values");
  compute(own_heads, all, lse);
  to_tokens(all.o, sections.o, o_THE, "outputs of attention");
  give_back_buffers();
}

template <typename Compute>
void ContextOps::attend_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                                 ConstTensorView lse_HT, const AttentionShape& shape, TensorView dqkv_TQ,
                                 const Compute& compute) {
  const AttentionShape own_heads = heads_of_member(shape, size_);
  const int64_t num_tokens = size_ * qkv_TQ.dim(0);
  const RowSections sections = sections_of(shape, size_, qkv_TQ.dtype());
  const Buffers all = take_buffers(own_heads, num_tokens, qkv_TQ.dtype(), /*training=*/true);
  to_heads(qkv_TQ, sections.qkv, all.qkv, "queries, keys and values");
  to_heads(o_THE, sections.o, all.o, "outputs of attention");
  to_heads(do_THE, sections.o, all.d_o, "gradients of attention outputs");
  compute(own_heads, all, lse_HT.reshaped({own_heads.num_heads, num_tokens}));
  to_tokens(all.dqkv, sections.qkv, dqkv_TQ, "gradients of queries, keys and values");
  give_back_buffers();
}

RowRange ContextOps::own_part(const AttentionShape& own_heads) const {
  const int64_t index = all_to_all_ == nullptr ? 0 : all_to_all_->index();
  return {index * own_heads.num_heads, (index + 1) * own_heads.num_heads};
}

void ContextOps::attention(ConstTensorView qkv_TQ, const AttentionShape& shape,
                           std::span<const int32_t> /*cu_seqlens*/, TensorView o_THE, TensorView lse_HT) {
  attend(qkv_TQ, shape, o_THE, lse_HT,
         [&](const AttentionShape& own_heads, const Buffers& all, TensorView lse) {
           ForwardingOps::attention(all.qkv, own_heads, cu_seqlens_, all.o, lse);
         });
}

void ContextOps::attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                                    ConstTensorView lse_HT, const AttentionShape& shape,
                                    std::span<const int32_t> /*cu_seqlens*/, TensorView dqkv_TQ) {
  attend_backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, dqkv_TQ,
                  [&](const AttentionShape& own_heads, const Buffers& all, ConstTensorView lse) {
                    ForwardingOps::attention_backward(all.d_o, all.qkv, all.o, lse, own_heads, cu_seqlens_,
                                                      all.dqkv);
                  });
}

namespace {

void check_has_sinks_alone(const AttentionInputs& inputs, const AttentionShape& shape) {
  TESSERA_CHECK(inputs.causal && inputs.bias == nullptr && !inputs.sinks_H.empty() &&
                    inputs.q_rows.dim(1) == shape.qkv_width() && inputs.kv_rows.dim(1) == shape.qkv_width(),
                "attention other than causal with sinks, rows of {} and {}", inputs.q_rows.dim(1),
                inputs.kv_rows.dim(1));
}

}  // namespace

void ContextOps::general_attention(const AttentionInputs& inputs, const AttentionShape& shape,
                                   TensorView o_THE, TensorView lse_HT) {
  check_has_sinks_alone(inputs, shape);
  attend(inputs.q_rows, shape, o_THE, lse_HT,
         [&](const AttentionShape& own_heads, const Buffers& all, TensorView lse) {
           const RowRange part = own_part(own_heads);
           AttentionInputs own = AttentionInputs::of_fused(all.qkv, own_heads, cu_seqlens_);
           own.sinks_H = inputs.sinks_H.rows(part.begin, part.end);
           ForwardingOps::general_attention(own, own_heads, all.o, lse);
         });
}

void ContextOps::general_attention_backward(ConstTensorView do_THE, const AttentionInputs& inputs,
                                            ConstTensorView o_THE, ConstTensorView lse_HT,
                                            const AttentionShape& shape,
                                            const AttentionGradients& gradients) {
  check_has_sinks_alone(inputs, shape);
  attend_backward(do_THE, inputs.q_rows, o_THE, lse_HT, shape, gradients.dq_rows,
                  [&](const AttentionShape& own_heads, const Buffers& all, ConstTensorView lse) {
                    const RowRange part = own_part(own_heads);
                    AttentionInputs own = AttentionInputs::of_fused(all.qkv, own_heads, cu_seqlens_);
                    own.sinks_H = inputs.sinks_H.rows(part.begin, part.end);
                    AttentionGradients to = {all.dqkv, all.dqkv, {}};
                    to.sinks_update = gradients.sinks_update;
                    if (!gradients.dsinks_H.empty()) {
                      if (to.sinks_update == Update::kOverwrite) zero(gradients.dsinks_H);
                      to.dsinks_H = gradients.dsinks_H.rows(part.begin, part.end);
                    }
                    ForwardingOps::general_attention_backward(all.d_o, own, all.o, lse, own_heads, to);
                  });
}

void ContextOps::attention_cached(ConstTensorView /*qkv_TQ*/, const AttentionShape& /*shape*/,
                                  TensorView /*k_cache*/, TensorView /*v_cache*/, int64_t /*cache_length*/,
                                  ConstTensorView /*sinks_H*/, TensorView /*o_THE*/) {
  TESSERA_CHECK(false, "tokens of a generation are not shared out");
}

}  // namespace tessera
