// VerifyingOps must detect a fault in any operation, and must not report one if there is none.
#include "bench/step/verifying_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "bench/kernels/random_tensor.h"
#include "expect_error.h"
#include "model/rope_table.h"
#include "ops/cpu_ops.h"

namespace tessera {
namespace {

constexpr int64_t kT = 12, kD = 64, kF = 48, kV = 40;
constexpr AttentionShape kHeads = {2, 1, 16, 0, 0.25f};

// Tensors of every shape that an operation below needs, and Ops with their workspace.
struct Fixture {
  explicit Fixture(DType of) : dtype(of) {
    const OpsLimits limits = {.max_tokens = kT,
                              .max_sequence_length = kT,
                              .hidden_size = kD,
                              .max_logits_rows = kT,
                              .max_sum_elements = kT * kD,
                              .attention = kHeads,
                              .dtype = dtype,
                              .training = true,
                              .linears = {{kT, {kF, kD}}}};
    workspace = PageBuffer(std::max<int64_t>(64, ops->workspace_bytes(limits)));
    ops->bind_workspace(workspace.as<std::byte>());
    ModelConfig config;
    config.head_dim = kHeads.head_dim;
    rope = RopeTableBuffer(config, kT);
    for (int32_t t = 0; t < kT; ++t) positions.push_back(t);
  }
  // Random values; each tensor is requested only once.
  TensorView tensor(const Shape& shape) { return make(dtype, shape); }
  TensorView floats(const Shape& shape) { return make(DType::kF32, shape); }

  DType dtype;
  ThreadPool pool{1};
  std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  PageBuffer workspace;
  RopeTableBuffer rope;
  std::vector<int32_t> positions;
  std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 39};
  std::vector<int32_t> cu_seqlens = {0, 5, 12};

 private:
  TensorView make(DType of, const Shape& shape) {
    tensors_.push_back(std::make_unique<RandomTensor>(of, shape, tensors_.size() + 1, 0.5f, pool));
    return tensors_.back()->view();
  }
  std::vector<std::unique_ptr<RandomTensor>> tensors_;
};

// One call of an operation, and the output in which a fault would appear.
struct Call {
  const char* name;
  std::function<TensorView(Ops&, Fixture&)> run;
  int64_t num_checked = 31;  // at least
};

std::vector<Call> calls() {
  const int64_t Q = kHeads.qkv_width(), HE = kHeads.num_heads * kHeads.head_dim;
  std::vector<Call> all = {
      {"embedding",
       [](Ops& ops, Fixture& f) {
         const TensorView x = f.tensor({kT, kD});
         ops.embedding(f.ids, f.tensor({kV, kD}), x);
         return x;
       }},
      {"embedding_backward",
       [](Ops& ops, Fixture& f) {
         const TensorView dtable = f.floats({kV, kD});
         ops.embedding_backward(f.ids, f.tensor({kT, kD}), /*padding_id=*/9, dtable);
         return dtable;
       }},
      {"linear",
       [](Ops& ops, Fixture& f) {
         const TensorView y = f.tensor({kT, kF});
         ops.linear(f.tensor({kT, kD}), f.tensor({kF, kD}), f.tensor({kF}), y);
         return y;
       }},
      {"rmsnorm",
       [](Ops& ops, Fixture& f) {
         const TensorView y = f.tensor({kT, kD});
         ops.rmsnorm(f.tensor({kT, kD}), f.tensor({kD}), 1e-5f, y, f.floats({kT}));
         return y;
       }},
      {"add_rmsnorm",
       [](Ops& ops, Fixture& f) {
         const TensorView norm = f.tensor({kT, kD});
         ops.add_rmsnorm(f.tensor({kT, kD}), f.tensor({kT, kD}), f.tensor({kD}), 1e-5f, norm, f.floats({kT}));
         return norm;
       }},
      {"add",
       [](Ops& ops, Fixture& f) {
         const TensorView x = f.tensor({kT, kD});
         ops.add(x, f.tensor({kT, kD}));
         return x;
       }},
      {"rope",
       [Q](Ops& ops, Fixture& f) {
         const TensorView qkv = f.tensor({kT, Q});
         ops.rope(qkv, kHeads, f.positions, f.rope.table(), /*inverse=*/true);
         return qkv;
       }},
      {"head_rmsnorm",
       [Q](Ops& ops, Fixture& f) {
         const TensorView qkv = f.tensor({kT, Q});
         ops.head_rmsnorm(qkv, kHeads, 0, 2, f.tensor({16}), 1e-5f, qkv, f.floats({kT, 2}));
         return qkv;
       }},
      {"head_rmsnorm_backward",
       [Q](Ops& ops, Fixture& f) {
         const TensorView dqkv = f.tensor({kT, Q});
         ops.head_rmsnorm_backward(dqkv, f.tensor({kT, Q}), kHeads, 0, 2, f.tensor({16}), f.floats({kT, 2}),
                                   f.floats({16}), Update::kAdd);
         return dqkv;
       }},
      {"attention",
       [=](Ops& ops, Fixture& f) {
         const TensorView o = f.tensor({kT, HE});
         ops.attention(f.tensor({kT, Q}), kHeads, f.cu_seqlens, o, f.floats({2, kT}));
         return o;
       }},
      {"attention_backward",
       [=](Ops& ops, Fixture& f) {
         const TensorView qkv = f.tensor({kT, Q}), o = f.tensor({kT, HE}), lse = f.floats({2, kT});
         f.ops->attention(qkv, kHeads, f.cu_seqlens, o, lse);
         const TensorView dqkv = f.tensor({kT, Q});
         ops.attention_backward(f.tensor({kT, HE}), qkv, o, lse, kHeads, f.cu_seqlens, dqkv);
         return dqkv;
       }},
      {"swiglu",
       [](Ops& ops, Fixture& f) {
         const TensorView h = f.tensor({kT, kF});
         ops.swiglu(f.tensor({kT, 2 * kF}), h);
         return h;
       }},
      {"swiglu_backward",
       [](Ops& ops, Fixture& f) {
         const TensorView gate_up = f.tensor({kT, 2 * kF});
         const TensorView dh = f.tensor({kT, kF});
         ops.swiglu_backward(dh, gate_up, gate_up, dh);
         return gate_up;
       }},
      {"cross_entropy",
       [](Ops& ops, Fixture& f) {
         const TensorView dlogits = f.tensor({kT, kV});
         std::vector<int32_t> targets = f.ids;
         targets[4] = kIgnoredLabel;
         ops.cross_entropy(f.floats({kT, kV}), targets, 0, 0.1f, dlogits);
         return dlogits;
       }},
      {"cross_entropy_add_chunk",
       [](Ops& ops, Fixture& f) {
         std::vector<SoftmaxRow> rows(kT);
         ops.cross_entropy_add_chunk(f.floats({kT, 5}), 0, f.ids, 0, rows);
         ops.cross_entropy_add_chunk(f.floats({kT, kV - 5}), 5, f.ids, 0, rows);
         return TensorView();
       }},
      {"cross_entropy_loss",
       [](Ops& ops, Fixture& f) {
         std::vector<SoftmaxRow> rows(kT);
         f.ops->cross_entropy_add_chunk(f.floats({kT, kV}), 0, f.ids, 0, rows);
         ops.cross_entropy_loss(rows, f.ids, kV, 0);
         return TensorView();
       },
       /*num_checked=*/1},
      {"cross_entropy_chunk_gradient",
       [](Ops& ops, Fixture& f) {
         const TensorView logits = f.floats({kT, kV - 5}), dlogits = f.tensor({kT, kV - 5});
         std::vector<SoftmaxRow> rows(kT);
         f.ops->cross_entropy_add_chunk(f.floats({kT, 5}), 0, f.ids, 0, rows);
         f.ops->cross_entropy_add_chunk(logits, 5, f.ids, 0, rows);
         ops.cross_entropy_chunk_gradient(logits, 5, kV, f.ids, rows, 0, 0.1f, dlogits);
         return dlogits;
       }},
      {"round_to",
       [](Ops& ops, Fixture& f) {
         const TensorView to = f.tensor({kT, kD});
         ops.round_to(f.floats({kT, kD}), to);
         return to;
       }},
      {"sum_of_squares",
       [](Ops& ops, Fixture& f) {
         const TensorView x = f.floats({kT, kD});
         ops.sum_of_squares(x);
         return x;
       },
       /*num_checked=*/1},
  };
  for (const Update update : {Update::kOverwrite, Update::kAdd}) {
    all.push_back({"linear_backward_input", [update](Ops& ops, Fixture& f) {
                     const TensorView dx = f.tensor({kT, kD});
                     ops.linear_backward_input(f.tensor({kT, kF}), f.tensor({kF, kD}), dx, update);
                     return dx;
                   }});
    all.push_back(
        {"linear_backward_weight", [update](Ops& ops, Fixture& f) {
           const TensorView dw = f.floats({kF, kD});
           double squares = 0;
           ops.linear_backward_weight(f.tensor({kT, kF}), f.tensor({kT, kD}), dw, {update, &squares});
           return dw;
         }});
    all.push_back({"linear_backward_bias", [update](Ops& ops, Fixture& f) {
                     const TensorView db = f.floats({kF});
                     ops.linear_backward_bias(f.tensor({kT, kF}), db, update);
                     return db;
                   }});
    all.push_back({"rmsnorm_backward", [update](Ops& ops, Fixture& f) {
                     const TensorView dx = f.tensor({kT, kD});
                     ops.rmsnorm_backward(f.tensor({kT, kD}), f.tensor({kT, kD}), f.tensor({kD}),
                                          f.floats({kT}), dx, update, f.floats({kD}), update);
                     return dx;
                   }});
  }
  return all;
}

TEST(VerifyingOps, RightOperationsPass) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Call& call : calls()) {
      Fixture f(dtype);
      VerifyingOps verifying(*f.ops);
      call.run(verifying, f);
      EXPECT_GE(verifying.result().num_checked, call.num_checked) << call.name;
      EXPECT_LE(verifying.result().worst_error, 1) << call.name;
    }
  }
}

enum class Fault { kFirstOutput, kSecondOutput, kNotANumber };

// Computes everything correctly, then changes an output: all of it by five percent, or one element to NaN.
class FaultyOps final : public ForwardingOps {
 public:
  FaultyOps(Ops& ops, Fault fault) : ForwardingOps(ops), fault_(fault) {}

  void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
              TensorView y_TN) override {
    ops().linear(x_TK, weight, bias_N, y_TN);
    spoil(y_TN);
  }
  void linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                             Update update) override {
    ops().linear_backward_input(dy_TN, weight, dx_TK, update);
    spoil(dx_TK);
  }
  void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                              WeightUpdate update) override {
    ops().linear_backward_weight(dy_TN, x_TK, dw_NK, update);
    if (fault_ == Fault::kSecondOutput) return spoil(update.squares);
    spoil(dw_NK);
  }
  void linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) override {
    ops().linear_backward_bias(dy_TN, db_N, update);
    spoil(db_N);
  }
  void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) override {
    ops().embedding(ids, table_VD, x_TD);
    spoil(x_TD);
  }
  void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                          TensorView dtable_VD) override {
    ops().embedding_backward(ids, dx_TD, padding_id, dtable_VD);
    spoil(dtable_VD);
  }
  void rmsnorm(ConstTensorView x_RD, ConstTensorView w_D, float eps, TensorView y_RD,
               TensorView rstd_R) override {
    ops().rmsnorm(x_RD, w_D, eps, y_RD, rstd_R);
    spoil(y_RD, rstd_R);
  }
  void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                        ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        Update dw_update) override {
    ops().rmsnorm_backward(dy_RD, x_RD, w_D, rstd_R, dx_RD, dx_update, dw_D, dw_update);
    spoil(dx_RD, dw_D);
  }
  void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, ConstTensorView w_D, float eps, TensorView norm_TD,
                   TensorView rstd_T) override {
    ops().add_rmsnorm(x_TD, y_TD, w_D, eps, norm_TD, rstd_T);
    spoil(norm_TD, x_TD);
  }
  void add(TensorView x, ConstTensorView y) override {
    ops().add(x, y);
    spoil(x);
  }
  void round_to(ConstTensorView from, TensorView to) override {
    ops().round_to(from, to);
    spoil(to);
  }
  void zero(TensorView x) override {
    ops().zero(x);
    spoil(x);
  }
  double sum_of_squares(ConstTensorView x) override {
    double sum = ops().sum_of_squares(x);
    spoil(&sum);
    return sum;
  }
  void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                    ConstTensorView w_E, float eps, TensorView y_TQ, TensorView rstd) override {
    ops().head_rmsnorm(qkv_TQ, shape, head_begin, head_end, w_E, eps, y_TQ, rstd);
    spoil(y_TQ, rstd);
  }
  void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                             int64_t head_begin, int64_t head_end, ConstTensorView w_E, ConstTensorView rstd,
                             TensorView dw_E, Update dw_update) override {
    ops().head_rmsnorm_backward(dqkv_TQ, qkv_TQ, shape, head_begin, head_end, w_E, rstd, dw_E, dw_update);
    spoil(dqkv_TQ);
  }
  void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override {
    ops().rope(qkv_TQ, shape, positions, table, inverse);
    spoil(qkv_TQ);
  }
  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override {
    ops().attention(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT);
    spoil(o_THE, lse_HT);
  }
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override {
    ops().attention_backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ);
    spoil(dqkv_TQ);
  }
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, TensorView o_THE) override {
    ops().attention_cached(qkv_TQ, shape, k_cache, v_cache, cache_length, o_THE);
    spoil(o_THE);
  }
  void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) override {
    ops().swiglu(gate_up_TF2, h_TF);
    spoil(h_TF);
  }
  void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                       TensorView h_TF) override {
    ops().swiglu_backward(dh_TF, gate_up_TF2, dgate_up_TF2, h_TF);
    spoil(dgate_up_TF2, h_TF);
  }
  LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits_RV) override {
    LossSums sums = ops().cross_entropy(logits_RV, targets, label_smoothing, grad_scale, dlogits_RV);
    spoil(dlogits_RV);
    if (fault_ == Fault::kSecondOutput) sums.loss_sum *= kFactor;
    return sums;
  }
  void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                               std::span<const int32_t> targets, float label_smoothing,
                               std::span<SoftmaxRow> rows) override {
    ops().cross_entropy_add_chunk(logits_RC, first_column, targets, label_smoothing, rows);
    for (SoftmaxRow& row : rows) spoil(&row.sum_exp);
  }
  LossSums cross_entropy_loss(std::span<const SoftmaxRow> rows, std::span<const int32_t> targets,
                              int64_t vocab_size, float label_smoothing) override {
    LossSums sums = ops().cross_entropy_loss(rows, targets, vocab_size, label_smoothing);
    spoil(&sums.loss_sum);
    return sums;
  }
  void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                    std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                    float label_smoothing, float grad_scale, TensorView dlogits_RC) override {
    ops().cross_entropy_chunk_gradient(logits_RC, first_column, vocab_size, targets, rows, label_smoothing,
                                       grad_scale, dlogits_RC);
    spoil(dlogits_RC);
  }

 private:
  static constexpr float kFactor = 1.05f;

  void spoil(double* value) const {
    *value = fault_ == Fault::kNotANumber ? std::nan("") : static_cast<double>(kFactor) * *value;
  }
  void spoil(TensorView first, TensorView second = {}) {
    const TensorView output = fault_ == Fault::kSecondOutput ? second : first;
    if (output.empty()) return;
    if (fault_ == Fault::kNotANumber) return set_element(output, 0, std::nanf(""));
    for (int64_t i = 0; i < output.num_elements(); ++i) {
      set_element(output, i, kFactor * static_cast<float>(element(output, i)));
    }
  }

  Fault fault_;
};

TEST(VerifyingOps, AFaultInAnyOperationIsAnInternalErrorThatNamesIt) {
  const std::set<std::string> with_second_output = {
      "rmsnorm",   "rmsnorm_backward", "add_rmsnorm",     "head_rmsnorm",
      "attention", "cross_entropy",    "swiglu_backward", "linear_backward_weight"};
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Fault fault : {Fault::kFirstOutput, Fault::kSecondOutput, Fault::kNotANumber}) {
      for (const Call& call : calls()) {
        if (fault == Fault::kSecondOutput && !with_second_output.contains(call.name)) continue;
        SCOPED_TRACE(fmt::format("{} {} fault {}", call.name, dtype_name(dtype), static_cast<int>(fault)));
        Fixture f(dtype);
        FaultyOps faulty(*f.ops, fault);
        VerifyingOps verifying(faulty);
        expect_error(ExitCode::kInternal, {std::string(call.name) + " ", "expected", "within"},
                     [&] { call.run(verifying, f); });
      }
    }
  }
}

}  // namespace
}  // namespace tessera
