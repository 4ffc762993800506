#include "bench/step/verifying_ops.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "bench/kernels/verify.h"
#include "kernels/cross_entropy/cross_entropy_expected.h"
#include "kernels/rmsnorm/rmsnorm_expected.h"
#include "kernels/rope/rope_expected.h"
#include "kernels/swiglu/swiglu_expected.h"

namespace tessera {
namespace {

constexpr int64_t kSampledRows = 4;
constexpr int64_t kSampledColumns = 32;
constexpr int64_t kSampledElements = 64;

// "linear [512, 4096] [14336, 4096]".
std::string call_name(const char* operation, ConstTensorView first, ConstTensorView second) {
  return fmt::format("{} {} {} {}", operation, dtype_name(first.dtype()), first.shape().to_string(),
                     second.shape().to_string());
}

std::vector<int64_t> sample_rows(ConstTensorView matrix) {
  return sample_indices(matrix.dim(0), kSampledRows);
}

std::vector<int64_t> at_indices(std::span<const int32_t> values, std::span<const int64_t> indices) {
  std::vector<int64_t> result;
  for (const int64_t i : indices) result.push_back(values[static_cast<size_t>(i)]);
  return result;
}

// What a call adds to in these rows of its output; empty if it overwrites.
std::vector<double> former_rows(ConstTensorView output, std::span<const int64_t> rows, Update update) {
  return update == Update::kAdd ? rows_of(output, rows) : std::vector<double>();
}

std::vector<double> columns_of(ConstTensorView matrix, std::span<const int64_t> columns) {
  return values_at(matrix, range(0, matrix.dim(0)), columns);
}

// x + y, rounded once more than BF16 values need.
std::vector<Expected> expected_add(std::span<const double> x, std::span<const double> y) {
  std::vector<Expected> sum;
  for (size_t i = 0; i < x.size(); ++i) sum.push_back({x[i] + y[i], kFloatEps * std::abs(x[i] + y[i])});
  return sum;
}

// These rows of x are exactly this.
void verify_copied_rows(Verifier& verifier, std::span<const int64_t> rows, std::span<const double> expected,
                        ConstTensorView x_TD) {
  const std::vector<double> got = rows_of(x_TD, rows);
  for (size_t i = 0; i < got.size(); ++i) {
    const auto column = static_cast<int64_t>(i) % x_TD.dim(1);
    verifier.compare("x", rows[i * rows.size() / got.size()], column, got[i], expected[i], 0);
  }
}

double log_sum_exp(const SoftmaxRow& row) { return static_cast<double>(row.max) + std::log(row.sum_exp); }

}  // namespace

void VerifyingOps::linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
                          TensorView y_TN) {
  if (weight.is_quantized()) return ForwardingOps::linear(x_TK, weight, bias_N, y_TN);
  const std::vector<SamplePoint> points = sample_points(y_TN.dim(0), y_TN.dim(1), kSampledElements);
  ForwardingOps::linear(x_TK, weight, bias_N, y_TN);
  std::vector<double> bias;
  for (const SamplePoint& point : points) bias.push_back(bias_N.empty() ? 0 : element(bias_N, point.column));
  Verifier verifier(call_name("linear", x_TK, weight.w_NK), result_);
  verify_product(verifier, {x_TK}, {weight.w_NK}, y_TN, points, bias);
}

void VerifyingOps::linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                                         Update update) {
  if (weight.is_quantized()) return ForwardingOps::linear_backward_input(dy_TN, weight, dx_TK, update);
  const std::vector<SamplePoint> points = sample_points(dx_TK.dim(0), dx_TK.dim(1), kSampledElements);
  const std::vector<double> former =
      update == Update::kAdd ? values_at(dx_TK, points) : std::vector<double>();
  ForwardingOps::linear_backward_input(dy_TN, weight, dx_TK, update);
  Verifier verifier(call_name("linear_backward_input", dy_TN, weight.w_NK), result_);
  verify_product(verifier, {dy_TN}, {weight.w_NK, true}, dx_TK, points, former);
}

void VerifyingOps::linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                                          WeightUpdate update) {
  const std::vector<SamplePoint> points = sample_points(dw_NK.dim(0), dw_NK.dim(1), kSampledElements);
  const std::vector<double> former =
      update.mode == Update::kAdd ? values_at(dw_NK, points) : std::vector<double>();
  double squares = 0;
  ForwardingOps::linear_backward_weight(dy_TN, x_TK, dw_NK,
                                        {update.mode, update.squares == nullptr ? nullptr : &squares});
  Verifier verifier(call_name("linear_backward_weight", dy_TN, x_TK), result_);
  verify_product(verifier, {dy_TN, true}, {x_TK, true}, dw_NK, points, former);
  if (update.squares != nullptr) {
    verify_sum_of_squares(verifier, dw_NK, squares);
    *update.squares += squares;
  }
}

void VerifyingOps::linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) {
  const std::vector<int64_t> columns = sample_indices(dy_TN.dim(1), kSampledColumns);
  std::vector<Expected> expected;
  for (const int64_t n : columns) {
    const double former = update == Update::kAdd ? element(db_N, n) : 0;
    expected.push_back(
        expected_sum(dy_TN.dim(0), former, [&](int64_t t) { return element(dy_TN, t * dy_TN.dim(1) + n); }));
  }
  ForwardingOps::linear_backward_bias(dy_TN, db_N, update);
  Verifier verifier(call_name("linear_backward_bias", dy_TN, db_N), result_);
  verifier.compare_rows("db", db_N, columns, expected);
}

void VerifyingOps::embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) {
  ForwardingOps::embedding(ids, table_VD, x_TD);
  Verifier verifier(call_name("embedding", table_VD, x_TD), result_);
  const std::vector<int64_t> rows = sample_rows(x_TD);
  verify_copied_rows(verifier, rows, rows_of(table_VD, at_indices(ids, rows)), x_TD);
}

void VerifyingOps::embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                                      TensorView dtable_VD) {
  const int64_t D = dx_TD.dim(1);
  std::vector<int64_t> rows = at_indices(ids, sample_rows(dx_TD));
  rows.insert(rows.end(), {0, dtable_VD.dim(0) - 1});  // possibly without a token
  const std::vector<int64_t> columns = sample_indices(D, kSampledColumns);
  std::vector<Expected> expected;
  for (const int64_t row : rows) {
    for (const int64_t column : columns) {
      expected.push_back(expected_sum(std::ssize(ids), element(dtable_VD, row * D + column), [&](int64_t t) {
        const int32_t id = ids[static_cast<size_t>(t)];
        return id == row && id != padding_id ? element(dx_TD, t * D + column) : 0.0;
      }));
    }
  }
  ForwardingOps::embedding_backward(ids, dx_TD, padding_id, dtable_VD);
  Verifier verifier(call_name("embedding_backward", dx_TD, dtable_VD), result_);
  verifier.compare_values("dtable", dtable_VD, rows, columns, expected);
}

void VerifyingOps::rmsnorm(ConstTensorView x_RD, ConstTensorView w_D, float eps, TensorView y_RD,
                           TensorView rstd_R) {
  const std::vector<int64_t> rows = sample_rows(x_RD);
  const ExpectedNorm expected = expected_rmsnorm(rows_of(x_RD, rows), values_of(w_D), eps);
  ForwardingOps::rmsnorm(x_RD, w_D, eps, y_RD, rstd_R);
  Verifier verifier(call_name("rmsnorm", x_RD, w_D), result_);
  verifier.compare_rows("y", y_RD, rows, expected.y_RD);
  verifier.compare_rows("rstd", rstd_R, rows, expected.rstd_R);
}

void VerifyingOps::rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                                    ConstTensorView rstd_R, TensorView dx_RD, Update dx_update,
                                    TensorView dw_D, Update dw_update) {
  const std::vector<int64_t> rows = sample_rows(x_RD);
  const std::vector<int64_t> columns = sample_indices(x_RD.dim(1), kSampledColumns);
  const std::vector<Expected> dx =
      expected_rmsnorm_backward(rows_of(dy_RD, rows), rows_of(x_RD, rows), values_of(w_D),
                                rows_of(rstd_R, rows), former_rows(dx_RD, rows, dx_update));
  std::vector<Expected> dw;
  if (!dw_D.empty()) {
    dw = expected_rmsnorm_dw(columns_of(dy_RD, columns), columns_of(x_RD, columns), values_of(rstd_R),
                             former_rows(dw_D, columns, dw_update));
  }
  ForwardingOps::rmsnorm_backward(dy_RD, x_RD, w_D, rstd_R, dx_RD, dx_update, dw_D, dw_update);
  Verifier verifier(call_name("rmsnorm_backward", dy_RD, w_D), result_);
  verifier.compare_rows("dx", dx_RD, rows, dx);
  if (!dw_D.empty()) verifier.compare_rows("dw", dw_D, columns, dw);
}

void VerifyingOps::add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, ConstTensorView w_D, float eps,
                               TensorView norm_TD, TensorView rstd_T) {
  const std::vector<int64_t> rows = sample_rows(x_TD);
  const std::vector<Expected> sum = expected_add(rows_of(x_TD, rows), rows_of(y_TD, rows));
  ForwardingOps::add_rmsnorm(x_TD, y_TD, w_D, eps, norm_TD, rstd_T);
  const ExpectedNorm expected = expected_rmsnorm(rows_of(x_TD, rows), values_of(w_D), eps);
  Verifier verifier(call_name("add_rmsnorm", x_TD, w_D), result_);
  verifier.compare_rows("x", x_TD, rows, sum);
  verifier.compare_rows("norm", norm_TD, rows, expected.y_RD);
  verifier.compare_rows("rstd", rstd_T, rows, expected.rstd_R);
}

void VerifyingOps::add(TensorView x, ConstTensorView y) {
  const std::vector<int64_t> rows = sample_rows(x);
  const std::vector<Expected> expected = expected_add(rows_of(x, rows), rows_of(y, rows));
  ForwardingOps::add(x, y);
  Verifier(call_name("add", x, y), result_).compare_rows("x", x, rows, expected);
}

void VerifyingOps::round_to(ConstTensorView from, TensorView to) {
  ForwardingOps::round_to(from, to);
  Verifier verifier(call_name("round_to", from, to), result_);
  const ConstTensorView flat_from = from.reshaped({from.num_elements()});
  const TensorView flat_to = to.reshaped({to.num_elements()});
  for (const int64_t i : sample_indices(flat_to.dim(0), kSampledElements)) {
    const double expected = element(flat_from, i);
    verifier.compare("to", 0, i, element(flat_to, i), expected,
                     rounding_error(to.dtype()) * std::abs(expected));
  }
}

void VerifyingOps::gather_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const std::vector<int64_t> sampled = sample_indices(std::ssize(rows), kSampledRows);
  const std::vector<double> expected = rows_of(x_TD, at_indices(rows, sampled));
  ForwardingOps::gather_rows(rows, x_TD);
  Verifier verifier(call_name("gather_rows", x_TD, x_TD), result_);
  verify_copied_rows(verifier, sampled, expected, x_TD);
}

void VerifyingOps::scatter_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const std::vector<int64_t> sampled = sample_rows(x_TD);
  std::vector<double> expected;
  for (const int64_t row : sampled) {
    const auto at = std::lower_bound(rows.begin(), rows.end(), row);
    const bool is_zero = at == rows.end() || *at != row;
    const int64_t from = at - rows.begin();
    const std::vector<double> values =
        is_zero ? std::vector<double>(static_cast<size_t>(x_TD.dim(1))) : rows_of(x_TD, {&from, 1});
    expected.insert(expected.end(), values.begin(), values.end());
  }
  ForwardingOps::scatter_rows(rows, x_TD);
  Verifier verifier(call_name("scatter_rows", x_TD, x_TD), result_);
  verify_copied_rows(verifier, sampled, expected, x_TD);
}

void VerifyingOps::zero(TensorView x) {
  ForwardingOps::zero(x);
  Verifier verifier(call_name("zero", x, x), result_);
  const TensorView flat = x.reshaped({x.num_elements()});
  for (const int64_t i : sample_indices(flat.dim(0), kSampledElements)) {
    verifier.compare("x", 0, i, element(flat, i), 0, 0);
  }
}

double VerifyingOps::sum_of_squares(ConstTensorView x) {
  const double sum = ForwardingOps::sum_of_squares(x);
  Verifier verifier(call_name("sum_of_squares", x, x), result_);
  verify_sum_of_squares(verifier, x, sum);
  return sum;
}

void VerifyingOps::head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin,
                                int64_t head_end, ConstTensorView w_E, float eps, TensorView y_TQ,
                                TensorView rstd) {
  const std::vector<int64_t> rows = sample_rows(qkv_TQ);
  const std::vector<int64_t> columns = range(head_begin * shape.head_dim, head_end * shape.head_dim);
  const ExpectedNorm expected = expected_rmsnorm(values_at(qkv_TQ, rows, columns), values_of(w_E), eps);
  ForwardingOps::head_rmsnorm(qkv_TQ, shape, head_begin, head_end, w_E, eps, y_TQ, rstd);
  Verifier verifier(call_name("head_rmsnorm", qkv_TQ, w_E), result_);
  verifier.compare_values("y", y_TQ, rows, columns, expected.y_RD);
  verifier.compare_rows("rstd", rstd, rows, expected.rstd_R);
}

void VerifyingOps::head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ,
                                         const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                                         ConstTensorView w_E, ConstTensorView rstd, TensorView dw_E,
                                         Update dw_update) {
  const std::vector<int64_t> rows = sample_rows(dqkv_TQ);
  const std::vector<int64_t> columns = range(head_begin * shape.head_dim, head_end * shape.head_dim);
  const std::vector<Expected> expected =
      expected_rmsnorm_backward(values_at(dqkv_TQ, rows, columns), values_at(qkv_TQ, rows, columns),
                                values_of(w_E), rows_of(rstd, rows), /*former_RD=*/{});
  ForwardingOps::head_rmsnorm_backward(dqkv_TQ, qkv_TQ, shape, head_begin, head_end, w_E, rstd, dw_E,
                                       dw_update);
  Verifier verifier(call_name("head_rmsnorm_backward", dqkv_TQ, w_E), result_);
  verifier.compare_values("dqkv", dqkv_TQ, rows, columns, expected);
}

void VerifyingOps::rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
                        const RopeTable& table, bool inverse) {
  const std::vector<int64_t> rows = sample_rows(qkv_TQ);
  std::vector<int32_t> sampled_positions;
  for (const int64_t row : rows) sampled_positions.push_back(positions[static_cast<size_t>(row)]);
  const std::vector<Expected> expected =
      expected_rope(rows_of(qkv_TQ, rows), shape, sampled_positions, table, inverse);
  ForwardingOps::rope(qkv_TQ, shape, positions, table, inverse);
  Verifier(call_name("rope", qkv_TQ, qkv_TQ), result_).compare_rows("qkv", qkv_TQ, rows, expected);
}

void VerifyingOps::attention(ConstTensorView qkv_TQ, const AttentionShape& shape,
                             std::span<const int32_t> cu_seqlens, TensorView o_THE, TensorView lse_HT) {
  ForwardingOps::attention(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT);
  Verifier verifier(call_name("attention", qkv_TQ, o_THE), result_);
  verify_attention(verifier, qkv_TQ, shape, cu_seqlens, o_THE, lse_HT);
}

void VerifyingOps::attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                                      ConstTensorView lse_HT, const AttentionShape& shape,
                                      std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) {
  ForwardingOps::attention_backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ);
  Verifier verifier(call_name("attention_backward", qkv_TQ, o_THE), result_);
  verify_attention_backward(verifier, do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ);
}

void VerifyingOps::attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                                    TensorView v_cache, int64_t cache_length, TensorView o_THE) {
  (void)qkv_TQ, (void)shape, (void)k_cache, (void)v_cache, (void)cache_length, (void)o_THE;
  TESSERA_CHECK(false, "no step calls attention_cached");
}

void VerifyingOps::swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) {
  const std::vector<int64_t> rows = sample_rows(h_TF);
  const std::vector<Expected> expected = expected_swiglu(rows_of(gate_up_TF2, rows), h_TF.dim(1));
  ForwardingOps::swiglu(gate_up_TF2, h_TF);
  Verifier(call_name("swiglu", gate_up_TF2, h_TF), result_).compare_rows("h", h_TF, rows, expected);
}

void VerifyingOps::swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2,
                                   TensorView dgate_up_TF2, TensorView h_TF) {
  const std::vector<int64_t> rows = sample_rows(dh_TF);
  const std::vector<double> gate_up = rows_of(gate_up_TF2, rows);
  const int64_t F = dh_TF.dim(1);
  const std::vector<Expected> dgate_up = expected_swiglu_backward(rows_of(dh_TF, rows), gate_up, F);
  ForwardingOps::swiglu_backward(dh_TF, gate_up_TF2, dgate_up_TF2, h_TF);
  Verifier verifier(call_name("swiglu_backward", h_TF, dgate_up_TF2), result_);
  verifier.compare_rows("dgate_up", dgate_up_TF2, rows, dgate_up);
  verifier.compare_rows("h", h_TF, rows, expected_swiglu(gate_up, F));
}

LossSums VerifyingOps::cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets,
                                     float label_smoothing, float grad_scale, TensorView dlogits_RV) {
  TESSERA_CHECK(!dlogits_RV.empty(), "not a case of a benchmark");
  const std::vector<int64_t> sampled = sample_rows(logits_RV);
  std::vector<Expected> dlogits;
  Expected loss;
  for (int64_t r = 0; r < logits_RV.dim(0); ++r) {
    const int32_t target = targets[static_cast<size_t>(r)];
    const std::vector<double> logits = rows_of(logits_RV, {&r, 1});
    if (target != kIgnoredLabel) {
      const Expected row_loss = expected_loss(logits, target, label_smoothing);
      loss = {loss.value + row_loss.value, loss.bound + row_loss.bound};
    }
    if (!std::binary_search(sampled.begin(), sampled.end(), r)) continue;
    const std::vector<Expected> row = expected_logits_gradient(
        logits, 0, logits_RV.dim(1), expected_softmax(logits), target, label_smoothing, grad_scale);
    dlogits.insert(dlogits.end(), row.begin(), row.end());
  }
  const LossSums sums =
      ForwardingOps::cross_entropy(logits_RV, targets, label_smoothing, grad_scale, dlogits_RV);
  Verifier verifier(call_name("cross_entropy", logits_RV, dlogits_RV), result_);
  verifier.compare("loss_sum", 0, 0, sums.loss_sum, loss.value, loss.bound);
  verifier.compare_rows("dlogits", dlogits_RV, sampled, dlogits);
  return sums;
}

void VerifyingOps::cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                                           std::span<const int32_t> targets, float label_smoothing,
                                           TensorView rows) {
  TESSERA_CHECK(label_smoothing == 0, "not a case of a benchmark");
  const std::vector<int64_t> sampled = sample_indices(logits_RC.dim(0), kSampledElements);
  const std::span<const SoftmaxRow> states = softmax_rows(rows);
  std::vector<double> former;  // log of the sum of exponentials in earlier chunks
  for (const int64_t r : sampled) {
    former.push_back(first_column == 0 ? -HUGE_VAL : log_sum_exp(states[static_cast<size_t>(r)]));
  }
  ForwardingOps::cross_entropy_add_chunk(logits_RC, first_column, targets, label_smoothing, rows);
  Verifier verifier(call_name("cross_entropy_add_chunk", logits_RC, logits_RC), result_);
  for (size_t i = 0; i < sampled.size(); ++i) {
    const auto at = static_cast<size_t>(sampled[i]);
    if (targets[at] == kIgnoredLabel) continue;
    std::vector<double> logits = rows_of(logits_RC, {&sampled[i], 1});
    const int64_t column = targets[at] - first_column;
    if (0 <= column && column < logits_RC.dim(1)) {
      verifier.compare("target_logit", sampled[i], column, static_cast<double>(states[at].target_logit),
                       logits[static_cast<size_t>(column)], 0);
    }
    logits.push_back(former[i]);  // as one more logit
    const ExpectedSoftmax softmax = expected_softmax(logits);
    verifier.compare("log_sum_exp", sampled[i], 0, log_sum_exp(states[at]), softmax.lse,
                     kFloatEps * softmax.d);
  }
}

LossSums VerifyingOps::cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets,
                                          int64_t vocab_size, float label_smoothing) {
  const LossSums sums = ForwardingOps::cross_entropy_loss(rows, targets, vocab_size, label_smoothing);
  const std::span<const SoftmaxRow> states = softmax_rows(rows);
  double expected = 0, magnitude = 0;
  for (size_t r = 0; r < states.size(); ++r) {
    if (targets[r] == kIgnoredLabel) continue;
    const double lse = log_sum_exp(states[r]), target_logit = static_cast<double>(states[r].target_logit);
    expected += lse - target_logit;
    magnitude += std::abs(lse) + std::abs(target_logit);
  }
  Verifier verifier(fmt::format("cross_entropy_loss [{}]", states.size()), result_);
  verifier.compare("loss_sum", 0, 0, sums.loss_sum, expected, kFloatEps * magnitude);
  return sums;
}

void VerifyingOps::cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column,
                                                int64_t vocab_size, std::span<const int32_t> targets,
                                                ConstTensorView rows, float label_smoothing, float grad_scale,
                                                TensorView dlogits_RC) {
  std::vector<Expected> dlogits;
  const std::vector<int64_t> sampled = sample_rows(logits_RC);
  for (const int64_t r : sampled) {
    const SoftmaxRow& state = softmax_rows(rows)[static_cast<size_t>(r)];
    // The state is an input here, without the error that d stands for.
    const std::vector<Expected> row = expected_logits_gradient(
        rows_of(logits_RC, {&r, 1}), first_column, vocab_size, {state.max, log_sum_exp(state), /*d=*/0},
        targets[static_cast<size_t>(r)], label_smoothing, grad_scale);
    dlogits.insert(dlogits.end(), row.begin(), row.end());
  }
  ForwardingOps::cross_entropy_chunk_gradient(logits_RC, first_column, vocab_size, targets, rows,
                                              label_smoothing, grad_scale, dlogits_RC);
  Verifier verifier(call_name("cross_entropy_chunk_gradient", logits_RC, dlogits_RC), result_);
  verifier.compare_rows("dlogits", dlogits_RC, sampled, dlogits);
}

}  // namespace tessera
