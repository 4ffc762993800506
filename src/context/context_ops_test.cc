#include "context/context_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "context/context_rank.h"
#include "context/slice_batch.h"
#include "ops/cpu_ops.h"
#include "support/kernel_test_util.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;
using testing::IsEmpty;

struct AttentionCase {
  AttentionShape shape;
  std::vector<int32_t> lengths;
  int num_nodes, local_world_size;
  int64_t size;
  bool has_sinks = false;
};

// Every size-th row from the one with number `index` on, zero after the last.
GuardedTensor rows_of_member(const GuardedTensor& all, int64_t size, int64_t index) {
  const int64_t num_tokens = all.shape()[0], width = all.shape()[1],
                own_tokens = tokens_of_member(num_tokens, size);
  GuardedTensor own(all.dtype(), {own_tokens, width});
  own.fill(0);
  const auto row_bytes = static_cast<size_t>(width * dtype_bytes(all.dtype()));
  for (int64_t t = index; t < num_tokens; t += size) {
    std::memcpy(own.view().rows(t / size, t / size + 1).bytes(), all.view().rows(t, t + 1).bytes(),
                row_bytes);
  }
  return own;
}

// Inputs and results of attention on a single rank.
struct WholeAttention {
  WholeAttention(const AttentionCase& c, DType dtype, int64_t num_tokens)
      : qkv(dtype, {num_tokens, c.shape.qkv_width()}),
        o(dtype, {num_tokens, c.shape.num_heads * c.shape.head_dim}),
        d_o(dtype, o.shape()),
        dqkv(dtype, qkv.shape()),
        sinks(dtype, {c.shape.num_heads}),
        dsinks(DType::kF32, sinks.shape()) {
    qkv.fill_normal(1);
    d_o.fill_normal(2);
    sinks.fill_normal(3);
  }

  GuardedTensor qkv, o, d_o, dqkv, sinks, dsinks;
};

OpsLimits limits_of(const AttentionShape& shape, DType dtype, int64_t max_tokens) {
  OpsLimits limits = {};
  limits.max_tokens = max_tokens;
  limits.hidden_size = 8;
  limits.attention = shape;
  limits.dtype = dtype;
  limits.training = true;
  return limits;
}

void run_attention(Ops& ops, const AttentionCase& c, DType dtype, std::span<const int32_t> cu_seqlens,
                   const GuardedTensor& qkv, const GuardedTensor& d_o, const GuardedTensor& sinks,
                   GuardedTensor* o, GuardedTensor* dqkv, GuardedTensor* dsinks) {
  const int64_t num_tokens = qkv.shape()[0];
  const TestScratch workspace(ops.workspace_bytes(limits_of(c.shape, dtype, num_tokens)));
  ops.bind_workspace(workspace.span());
  GuardedTensor lse(DType::kF32, {c.shape.num_heads, num_tokens});
  if (c.has_sinks) {
    AttentionInputs inputs = AttentionInputs::of_fused(qkv.view(), c.shape, cu_seqlens);
    inputs.sinks_H = sinks.view();
    ops.general_attention(inputs, c.shape, o->view(), lse.view());
    ops.general_attention_backward(
        d_o.view(), inputs, o->view(), lse.view(), c.shape,
        {.dq_rows = dqkv->view(), .dkv_rows = dqkv->view(), .dtable_BH = {}, .dsinks_H = dsinks->view()});
    return;
  }
  ops.attention(qkv.view(), c.shape, cu_seqlens, o->view(), lse.view());
  ops.attention_backward(d_o.view(), qkv.view(), o->view(), lse.view(), c.shape, cu_seqlens, dqkv->view());
}

// Where a row differs from what is expected, beyond `error` of its largest value from column `rounded` on; -1
// if nowhere.
int64_t first_difference(const GuardedTensor& found, const GuardedTensor& expected, int64_t row,
                         int64_t rounded, double error) {
  const int64_t width = found.shape()[1], begin = row * width;
  double largest = 0;
  for (int64_t i = 0; i < width; ++i) largest = std::max(largest, std::abs(expected[begin + i]));
  for (int64_t i = 0; i < width; ++i) {
    const double off = std::abs(found[begin + i] - expected[begin + i]);
    if (!(off <= (i < rounded ? 0 : error * largest))) return i;
  }
  return -1;
}

// A member has the gradients of its heads' sinks, and zeros.
void check_sink_gradients(const AttentionCase& c, int64_t index, const GuardedTensor& found,
                          const GuardedTensor& expected) {
  const int64_t own = c.shape.num_heads / c.size;
  for (int64_t h = 0; c.has_sinks && h < c.shape.num_heads; ++h) {
    const double wanted = h / own == index ? expected[h] : 0;
    if (found[h] != wanted)
      throw std::runtime_error(fmt::format("sink {}: {} instead of {}", h, found[h], wanted));
  }
}

// Attention of a head does not depend on where its tokens came from: the same numbers. Only the gradients of
// keys and values that several members have are sums of several roundings.
TEST(ContextOps, ComputeWhatOneRankDoes) {
  const std::vector<AttentionCase> cases = {
      {{2, 2, 16, 0, 0.25f}, {40, 1, 70}, 1, 2, 2},   {{4, 2, 32, 0, 0.2f}, {130}, 2, 1, 2},
      {{8, 4, 8, 20, 0.3f}, {33, 64, 5}, 2, 2, 4},    {{6, 3, 20, 0, 0.2f}, {1, 1}, 1, 3, 3},
      {{4, 4, 16, 0, 0.25f}, {3, 200, 17}, 1, 4, 2},  {{4, 1, 16, 0, 0.25f}, {90, 7}, 1, 4, 4},
      {{8, 2, 12, 30, 0.25f}, {100, 61}, 2, 2, 4},    {{8, 4, 8, 20, 0.3f}, {33, 64, 5}, 2, 2, 4, true},
      {{4, 1, 16, 0, 0.25f}, {90, 7}, 1, 4, 4, true},
  };
  for (const AttentionCase& c : cases) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      PackedBatch batch;
      batch.cu_seqlens = {0};
      for (const int32_t length : c.lengths) batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
      const int64_t num_tokens = batch.cu_seqlens.back();
      for (std::vector<int32_t>* values : {&batch.input_ids, &batch.positions, &batch.targets})
        values->resize(static_cast<size_t>(num_tokens));
      WholeAttention whole(c, dtype, num_tokens);
      {
        ThreadPool pool(2, CpuLimits());
        run_attention(*make_cpu_ops(pool), c, dtype, batch.cu_seqlens, whole.qkv, whole.d_o, whole.sinks,
                      &whole.o, &whole.dqkv, &whole.dsinks);
      }
      const auto errors = run_communicators(c.num_nodes, c.local_world_size, {}, [&](Communicator& comm) {
        ThreadPool pool(2, CpuLimits());
        const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
        ContextRank rank(*ops, context_team(comm.world(), c.size));
        const int64_t index = rank.team().index;
        rank.open(comm, c.shape, dtype, tokens_of_member(num_tokens, c.size), pool);
        const GuardedTensor qkv = rows_of_member(whole.qkv, c.size, index),
                            d_o = rows_of_member(whole.d_o, c.size, index),
                            expected_o = rows_of_member(whole.o, c.size, index),
                            expected_dqkv = rows_of_member(whole.dqkv, c.size, index);
        GuardedTensor o(dtype, d_o.shape()), dqkv(dtype, qkv.shape()),
            dsinks(DType::kF32, whole.sinks.shape());
        const PackedBatch& slice = rank.take_slice(batch);
        run_attention(rank.ops(), c, dtype, slice.cu_seqlens, qkv, d_o, whole.sinks, &o, &dqkv, &dsinks);
        check_sink_gradients(c, index, dsinks, whole.dsinks);
        for (int64_t t = 0; t < rank.num_tokens_of_rows(); ++t) {
          const int64_t queries = c.shape.num_heads * c.shape.head_dim;
          const bool has_readers = readers_of_key_value_head(c.shape, c.size) > 1;
          const int64_t in_o = first_difference(o, expected_o, t, queries, 0);
          const int64_t in_dqkv =
              first_difference(dqkv, expected_dqkv, t, has_readers ? queries : c.shape.qkv_width(),
                               dtype == DType::kBF16 ? 0.02 : 1e-6);
          if (in_o >= 0 || in_dqkv >= 0)
            throw std::runtime_error(fmt::format("token {}: column {} of o, {} of dqkv", t, in_o, in_dqkv));
        }
      });
      EXPECT_THAT(errors, Each(IsEmpty())) << c.num_nodes << "x" << c.local_world_size << " "
                                           << dtype_name(dtype) << " " << num_tokens << " tokens";
    }
  }
}

TEST(ContextOps, PlanWithoutAnAllToAllWhatTheyTakeWithOne) {
  ThreadPool pool(1, CpuLimits());
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  const AttentionShape shape = {8, 4, 64, 0, 0.125f};
  const OpsLimits limits = limits_of(shape, DType::kBF16, 1000);
  // Operands, results and gradients of all tokens and a quarter of the heads.
  const int64_t moved = 2 * 1000 * (16 + 8) * 64 * 2;
  EXPECT_GE(ContextOps(*ops, 4).workspace_bytes(limits), moved);
  EXPECT_EQ(ContextOps::all_to_all_bytes(shape, 4, 1000, DType::kBF16), 1000 * 16 * 64 * 2);
  // Every key-value head goes to two members.
  EXPECT_EQ(ContextOps::all_to_all_bytes(shape, 8, 1000, DType::kBF16), 1000 * 24 * 64 * 2);
}

}  // namespace
}  // namespace tessera
