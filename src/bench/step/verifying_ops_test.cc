// VerifyingOps must detect a fault in any operation, and must not report one if there is none.
#include "bench/step/verifying_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "devices/measure/random_tensor.h"
#include "expect_error.h"
#include "model/llama/rope_table.h"
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
  TensorView softmax_rows() { return {states.data(), DType::kU8, {kT, kSoftmaxRowBytes}}; }
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
  std::vector<int32_t> rows = {0, 2, 3, 7, 10, 11};
  std::vector<SoftmaxRow> states = std::vector<SoftmaxRow>(kT);

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
         const TensorView rows = f.softmax_rows();
         ops.cross_entropy_add_chunk(f.floats({kT, 5}), 0, f.ids, 0, rows);
         ops.cross_entropy_add_chunk(f.floats({kT, kV - 5}), 5, f.ids, 0, rows);
         return TensorView();
       }},
      {"cross_entropy_loss",
       [](Ops& ops, Fixture& f) {
         const TensorView rows = f.softmax_rows();
         f.ops->cross_entropy_add_chunk(f.floats({kT, kV}), 0, f.ids, 0, rows);
         ops.cross_entropy_loss(rows, f.ids, kV, 0);
         return TensorView();
       },
       /*num_checked=*/1},
      {"cross_entropy_chunk_gradient",
       [](Ops& ops, Fixture& f) {
         const TensorView logits = f.floats({kT, kV - 5}), dlogits = f.tensor({kT, kV - 5});
         const TensorView rows = f.softmax_rows();
         f.ops->cross_entropy_add_chunk(f.floats({kT, 5}), 0, f.ids, 0, rows);
         f.ops->cross_entropy_add_chunk(logits, 5, f.ids, 0, rows);
         ops.cross_entropy_chunk_gradient(logits, 5, kV, f.ids, rows, 0, 0.1f, dlogits);
         return dlogits;
       }},
      {"gather_rows",
       [](Ops& ops, Fixture& f) {
         const TensorView x = f.tensor({kT, kD});
         ops.gather_rows(f.rows, x);
         return x;
       }},
      {"scatter_rows",
       [](Ops& ops, Fixture& f) {
         const TensorView x = f.tensor({kT, kD});
         ops.scatter_rows(f.rows, x);
         return x;
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

  // The outputs that are not tensors.
  void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                              WeightUpdate update) override {
    ForwardingOps::linear_backward_weight(dy_TN, x_TK, dw_NK, update);
    if (fault_ == Fault::kSecondOutput) spoil(update.squares);
  }
  double sum_of_squares(ConstTensorView x) override {
    double sum = ForwardingOps::sum_of_squares(x);
    spoil(&sum);
    return sum;
  }
  LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits_RV) override {
    LossSums sums = ForwardingOps::cross_entropy(logits_RV, targets, label_smoothing, grad_scale, dlogits_RV);
    if (fault_ == Fault::kSecondOutput) spoil(&sums.loss_sum);
    return sums;
  }
  void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                               std::span<const int32_t> targets, float label_smoothing,
                               TensorView rows) override {
    ForwardingOps::cross_entropy_add_chunk(logits_RC, first_column, targets, label_smoothing, rows);
    for (SoftmaxRow& row : softmax_rows(rows)) spoil(&row.sum_exp);
  }
  LossSums cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets, int64_t vocab_size,
                              float label_smoothing) override {
    LossSums sums = ForwardingOps::cross_entropy_loss(rows, targets, vocab_size, label_smoothing);
    spoil(&sums.loss_sum);
    return sums;
  }

 private:
  static constexpr float kFactor = 1.05f;

  void around(const OpCall& call, FunctionRef<void()> run) override {
    run();
    const size_t index = fault_ == Fault::kSecondOutput ? 1 : 0;
    if (index < call.outputs.size() && call.outputs[index]->dtype() != DType::kU8)
      spoil(*call.outputs[index]);
  }
  void spoil(double* value) const {
    *value = fault_ == Fault::kNotANumber ? std::nan("") : static_cast<double>(kFactor) * *value;
  }
  void spoil(TensorView output) const {
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
