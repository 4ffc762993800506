#include "bench/step/verifying_ops.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "bench/kernels/random_tensor.h"
#include "bench/kernels/verify_attention.h"
#include "bench/kernels/verify_gemm.h"

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

std::vector<double> values_at(ConstTensorView matrix, const std::vector<SamplePoint>& points) {
  std::vector<double> values;
  for (const SamplePoint& point : points) {
    values.push_back(element(matrix, point.row * matrix.dim(1) + point.column));
  }
  return values;
}

std::vector<double> elements_at(ConstTensorView tensor, const std::vector<int64_t>& indices) {
  std::vector<double> values;
  for (const int64_t i : indices) values.push_back(element(tensor, i));
  return values;
}

std::vector<int64_t> sample_rows(ConstTensorView matrix) {
  return sample_indices(matrix.dim(0), kSampledRows);
}

// A sum over rows, term(row), added to `former`.
template <typename Term>
void verify_sum(Verifier& verifier, const char* tensor, int64_t column, int64_t num_rows, double former,
                double got, const Term& term) {
  double expected = former, magnitude = std::abs(former);
  for (int64_t row = 0; row < num_rows; ++row) {
    expected += term(row);
    magnitude += std::abs(term(row));
  }
  verifier.compare(tensor, 0, column, got, expected,
                   static_cast<double>(num_rows + 16) * kFloat32Rounding * magnitude);
}

// dw_i = (former or 0) + sum over rows of dy x rstd, at the columns kept.
void verify_norm_weight(Verifier& verifier, ConstTensorView dy_RD, ConstTensorView x_RD,
                        ConstTensorView rstd_R, const std::vector<int64_t>& columns,
                        const std::vector<double>& former, Update update, ConstTensorView dw_D) {
  const int64_t width = dy_RD.dim(1);
  for (size_t i = 0; i < columns.size(); ++i) {
    const int64_t column = columns[i];
    verify_sum(verifier, "dw", column, dy_RD.dim(0), update == Update::kAdd ? former[i] : 0,
               element(dw_D, column), [&](int64_t row) {
                 const int64_t at = row * width + column;
                 return element(dy_RD, at) * element(x_RD, at) * element(rstd_R, row);
               });
  }
}

// Row `row` of x is exactly this.
void verify_copied_row(Verifier& verifier, int64_t row, const Row& expected, ConstTensorView x_TD) {
  const Row got = row_of(x_TD, row);
  for (size_t i = 0; i < got.size(); ++i) {
    verifier.compare("x", row, static_cast<int64_t>(i), got[i], expected[i], 0);
  }
}

double log_sum_exp(const SoftmaxRow& row) { return static_cast<double>(row.max) + std::log(row.sum_exp); }

Row slice(const Row& row, int64_t begin, int64_t count) {
  return Row(row.begin() + begin, row.begin() + begin + count);
}

}  // namespace

void VerifyingOps::linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
                          TensorView y_TN) {
  const int64_t K = x_TK.dim(1);
  const std::vector<SamplePoint> points = sample_points(y_TN.dim(0), y_TN.dim(1), kSampledElements);
  ForwardingOps::linear(x_TK, weight, bias_N, y_TN);
  std::vector<double> bias;
  for (const SamplePoint& point : points) bias.push_back(bias_N.empty() ? 0 : element(bias_N, point.column));
  Verifier verifier(call_name("linear", x_TK, weight.w_NK), result_);
  verify_product(verifier, {x_TK, K, 1}, {weight.w_NK, K, 1}, K, y_TN, points, bias);
}

void VerifyingOps::linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                                         Update update) {
  const int64_t N = weight.w_NK.dim(0), K = weight.w_NK.dim(1);
  const std::vector<SamplePoint> points = sample_points(dx_TK.dim(0), K, kSampledElements);
  const std::vector<double> former =
      update == Update::kAdd ? values_at(dx_TK, points) : std::vector<double>();
  ForwardingOps::linear_backward_input(dy_TN, weight, dx_TK, update);
  Verifier verifier(call_name("linear_backward_input", dy_TN, weight.w_NK), result_);
  verify_product(verifier, {dy_TN, N, 1}, {weight.w_NK, 1, K}, N, dx_TK, points, former);
}

void VerifyingOps::linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                                          WeightUpdate update) {
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = x_TK.dim(1);
  const std::vector<SamplePoint> points = sample_points(N, K, kSampledElements);
  const std::vector<double> former =
      update.mode == Update::kAdd ? values_at(dw_NK, points) : std::vector<double>();
  double squares = 0;
  ForwardingOps::linear_backward_weight(dy_TN, x_TK, dw_NK,
                                        {update.mode, update.squares == nullptr ? nullptr : &squares});
  Verifier verifier(call_name("linear_backward_weight", dy_TN, x_TK), result_);
  verify_product(verifier, {dy_TN, 1, N}, {x_TK, 1, K}, T, dw_NK, points, former);
  if (update.squares != nullptr) {
    verify_sum_of_squares(verifier, dw_NK, squares);
    *update.squares += squares;
  }
}

void VerifyingOps::linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) {
  const int64_t N = dy_TN.dim(1);
  const std::vector<int64_t> columns = sample_indices(N, kSampledColumns);
  const std::vector<double> former = elements_at(db_N, columns);
  ForwardingOps::linear_backward_bias(dy_TN, db_N, update);
  Verifier verifier(call_name("linear_backward_bias", dy_TN, db_N), result_);
  for (size_t i = 0; i < columns.size(); ++i) {
    verify_sum(verifier, "db", columns[i], dy_TN.dim(0), update == Update::kAdd ? former[i] : 0,
               element(db_N, columns[i]), [&](int64_t row) { return element(dy_TN, row * N + columns[i]); });
  }
}

void VerifyingOps::embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) {
  ForwardingOps::embedding(ids, table_VD, x_TD);
  Verifier verifier(call_name("embedding", table_VD, x_TD), result_);
  for (const int64_t row : sample_rows(x_TD)) {
    verify_copied_row(verifier, row, row_of(table_VD, ids[static_cast<size_t>(row)]), x_TD);
  }
}

void VerifyingOps::embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                                      TensorView dtable_VD) {
  const int64_t width = dx_TD.dim(1);
  std::vector<int64_t> sampled = {0, dtable_VD.dim(0) - 1};  // rows of the table, possibly without a token
  for (const int64_t row : sample_rows(dx_TD)) sampled.push_back(ids[static_cast<size_t>(row)]);
  const std::vector<Row> former = rows_of(dtable_VD, sampled);
  ForwardingOps::embedding_backward(ids, dx_TD, padding_id, dtable_VD);
  Verifier verifier(call_name("embedding_backward", dx_TD, dtable_VD), result_);
  for (size_t i = 0; i < sampled.size(); ++i) {
    const Row got = row_of(dtable_VD, sampled[i]);
    for (const int64_t column : sample_indices(width, kSampledColumns)) {
      const auto at = static_cast<size_t>(column);
      verify_sum(verifier, "dtable", column, dx_TD.dim(0), former[i][at], got[at], [&](int64_t row) {
        const int32_t id = ids[static_cast<size_t>(row)];
        return id == sampled[i] && id != padding_id ? element(dx_TD, row * width + column) : 0.0;
      });
    }
  }
}

void VerifyingOps::rmsnorm(ConstTensorView x_RD, ConstTensorView w_D, float eps, TensorView y_RD,
                           TensorView rstd_R) {
  const std::vector<int64_t> rows = sample_rows(x_RD);
  const std::vector<Row> x = rows_of(x_RD, rows);  // y may be x
  ForwardingOps::rmsnorm(x_RD, w_D, eps, y_RD, rstd_R);
  Verifier verifier(call_name("rmsnorm", x_RD, w_D), result_);
  const Row w = row_of(w_D.reshaped({1, w_D.num_elements()}), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    verify_rmsnorm(verifier, rows[i], x[i], w, eps, row_of(y_RD, rows[i]), element(rstd_R, rows[i]),
                   y_RD.dtype());
  }
}

void VerifyingOps::rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                                    ConstTensorView rstd_R, TensorView dx_RD, Update dx_update,
                                    TensorView dw_D, Update dw_update) {
  const std::vector<int64_t> rows = sample_rows(x_RD);
  const std::vector<int64_t> columns = sample_indices(x_RD.dim(1), kSampledColumns);
  const std::vector<Row> dy = rows_of(dy_RD, rows), dx_before = rows_of(dx_RD, rows);  // dx may be dy
  const std::vector<double> dw_before = elements_at(dw_D, columns);
  Verifier verifier(call_name("rmsnorm_backward", dy_RD, w_D), result_);
  const bool in_place = dx_RD.bytes() == dy_RD.bytes();
  ForwardingOps::rmsnorm_backward(dy_RD, x_RD, w_D, rstd_R, dx_RD, dx_update, dw_D, dw_update);
  const Row w = row_of(w_D.reshaped({1, w_D.num_elements()}), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    verify_rmsnorm_backward(verifier, rows[i], dy[i], row_of(x_RD, rows[i]), w, element(rstd_R, rows[i]),
                            dx_update == Update::kAdd ? dx_before[i] : Row(), row_of(dx_RD, rows[i]),
                            dx_RD.dtype());
  }
  if (!in_place) verify_norm_weight(verifier, dy_RD, x_RD, rstd_R, columns, dw_before, dw_update, dw_D);
}

void VerifyingOps::add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, ConstTensorView w_D, float eps,
                               TensorView norm_TD, TensorView rstd_T) {
  const std::vector<int64_t> rows = sample_rows(x_TD);
  const std::vector<Row> x = rows_of(x_TD, rows);
  ForwardingOps::add_rmsnorm(x_TD, y_TD, w_D, eps, norm_TD, rstd_T);
  Verifier verifier(call_name("add_rmsnorm", x_TD, w_D), result_);
  const Row w = row_of(w_D.reshaped({1, w_D.num_elements()}), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row sum = row_of(x_TD, rows[i]);
    verify_add(verifier, rows[i], x[i], row_of(y_TD, rows[i]), sum, x_TD.dtype());
    verify_rmsnorm(verifier, rows[i], sum, w, eps, row_of(norm_TD, rows[i]), element(rstd_T, rows[i]),
                   norm_TD.dtype());
  }
}

void VerifyingOps::add(TensorView x, ConstTensorView y) {
  const TensorView x_RD = x.reshaped({x.dim(0), x.num_elements() / x.dim(0)});
  const std::vector<int64_t> rows = sample_rows(x_RD);
  const std::vector<Row> before = rows_of(x_RD, rows);
  ForwardingOps::add(x, y);
  Verifier verifier(call_name("add", x, y), result_);
  for (size_t i = 0; i < rows.size(); ++i) {
    verify_add(verifier, rows[i], before[i], row_of(y.reshaped(x_RD.shape()), rows[i]), row_of(x_RD, rows[i]),
               x.dtype());
  }
}

void VerifyingOps::round_to(ConstTensorView from, TensorView to) {
  ForwardingOps::round_to(from, to);
  Verifier verifier(call_name("round_to", from, to), result_);
  const ConstTensorView flat_from = from.reshaped({from.num_elements()});
  const TensorView flat_to = to.reshaped({to.num_elements()});
  for (const int64_t i : sample_indices(flat_to.dim(0), kSampledElements)) {
    const double expected = element(flat_from, i);
    verifier.compare("to", 0, i, element(flat_to, i), expected, rounding_of(to.dtype()) * std::abs(expected));
  }
}

void VerifyingOps::gather_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const std::vector<int64_t> sampled = sample_indices(std::ssize(rows), kSampledRows);
  std::vector<Row> expected;
  for (const int64_t i : sampled) expected.push_back(row_of(x_TD, rows[static_cast<size_t>(i)]));
  ForwardingOps::gather_rows(rows, x_TD);
  Verifier verifier(call_name("gather_rows", x_TD, x_TD), result_);
  for (size_t i = 0; i < sampled.size(); ++i) verify_copied_row(verifier, sampled[i], expected[i], x_TD);
}

void VerifyingOps::scatter_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const std::vector<int64_t> sampled = sample_rows(x_TD);
  std::vector<Row> expected;
  for (const int64_t row : sampled) {
    const auto at = std::lower_bound(rows.begin(), rows.end(), row);
    const bool is_zero = at == rows.end() || *at != row;
    expected.push_back(is_zero ? Row(static_cast<size_t>(x_TD.dim(1))) : row_of(x_TD, at - rows.begin()));
  }
  ForwardingOps::scatter_rows(rows, x_TD);
  Verifier verifier(call_name("scatter_rows", x_TD, x_TD), result_);
  for (size_t i = 0; i < sampled.size(); ++i) verify_copied_row(verifier, sampled[i], expected[i], x_TD);
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
  const std::vector<Row> before = rows_of(qkv_TQ, rows);
  ForwardingOps::head_rmsnorm(qkv_TQ, shape, head_begin, head_end, w_E, eps, y_TQ, rstd);
  Verifier verifier(call_name("head_rmsnorm", qkv_TQ, w_E), result_);
  const Row w = row_of(w_E.reshaped({1, shape.head_dim}), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row after = row_of(y_TQ, rows[i]);
    for (int64_t head = head_begin; head < head_end; ++head) {
      const int64_t at = head * shape.head_dim;
      verify_rmsnorm(verifier, rows[i], slice(before[i], at, shape.head_dim), w, eps,
                     slice(after, at, shape.head_dim),
                     element(rstd, rows[i] * (head_end - head_begin) + head - head_begin), y_TQ.dtype());
    }
  }
}

void VerifyingOps::head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ,
                                         const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                                         ConstTensorView w_E, ConstTensorView rstd, TensorView dw_E,
                                         Update dw_update) {
  const std::vector<int64_t> rows = sample_rows(dqkv_TQ);
  const std::vector<Row> before = rows_of(dqkv_TQ, rows);
  ForwardingOps::head_rmsnorm_backward(dqkv_TQ, qkv_TQ, shape, head_begin, head_end, w_E, rstd, dw_E,
                                       dw_update);
  Verifier verifier(call_name("head_rmsnorm_backward", dqkv_TQ, w_E), result_);
  const Row w = row_of(w_E.reshaped({1, shape.head_dim}), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row x = row_of(qkv_TQ, rows[i]), after = row_of(dqkv_TQ, rows[i]);
    for (int64_t head = head_begin; head < head_end; ++head) {
      const int64_t at = head * shape.head_dim;
      verify_rmsnorm_backward(verifier, rows[i], slice(before[i], at, shape.head_dim),
                              slice(x, at, shape.head_dim), w,
                              element(rstd, rows[i] * (head_end - head_begin) + head - head_begin), Row(),
                              slice(after, at, shape.head_dim), dqkv_TQ.dtype());
    }
  }
}

void VerifyingOps::rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
                        const RopeTable& table, bool inverse) {
  const std::vector<int64_t> rows = sample_rows(qkv_TQ);
  const std::vector<Row> before = rows_of(qkv_TQ, rows);
  ForwardingOps::rope(qkv_TQ, shape, positions, table, inverse);
  Verifier verifier(call_name("rope", qkv_TQ, qkv_TQ), result_);
  for (size_t i = 0; i < rows.size(); ++i) {
    verify_rope(verifier, rows[i], before[i], shape, positions[static_cast<size_t>(rows[i])], table, inverse,
                row_of(qkv_TQ, rows[i]), qkv_TQ.dtype());
  }
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
  ForwardingOps::swiglu(gate_up_TF2, h_TF);
  Verifier verifier(call_name("swiglu", gate_up_TF2, h_TF), result_);
  for (const int64_t row : sample_rows(h_TF)) {
    verify_swiglu(verifier, row, row_of(gate_up_TF2, row), row_of(h_TF, row), h_TF.dtype());
  }
}

void VerifyingOps::swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2,
                                   TensorView dgate_up_TF2, TensorView h_TF) {
  const std::vector<int64_t> rows = sample_rows(dh_TF);
  // dgate_up may be gate_up, h may be dh.
  const std::vector<Row> gate_up = rows_of(gate_up_TF2, rows), dh = rows_of(dh_TF, rows);
  ForwardingOps::swiglu_backward(dh_TF, gate_up_TF2, dgate_up_TF2, h_TF);
  Verifier verifier(call_name("swiglu_backward", h_TF, dgate_up_TF2), result_);
  for (size_t i = 0; i < rows.size(); ++i) {
    verify_swiglu_backward(verifier, rows[i], dh[i], gate_up[i], row_of(dgate_up_TF2, rows[i]),
                           dgate_up_TF2.dtype());
    verify_swiglu(verifier, rows[i], gate_up[i], row_of(h_TF, rows[i]), h_TF.dtype());
  }
}

LossSums VerifyingOps::cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets,
                                     float label_smoothing, float grad_scale, TensorView dlogits_RV) {
  TESSERA_CHECK(label_smoothing == 0 && !dlogits_RV.empty(), "not a case of a benchmark");
  const std::vector<int64_t> rows = sample_rows(logits_RV);
  const std::vector<Row> logits = rows_of(logits_RV, rows);  // dlogits may be logits
  const ExactLoss loss = exact_loss(logits_RV, targets);
  const LossSums sums =
      ForwardingOps::cross_entropy(logits_RV, targets, label_smoothing, grad_scale, dlogits_RV);
  Verifier verifier(call_name("cross_entropy", logits_RV, dlogits_RV), result_);
  verifier.compare("loss_sum", 0, 0, sums.loss_sum, loss.sum, loss.bound);
  for (size_t i = 0; i < rows.size(); ++i) {
    verify_cross_entropy(verifier, rows[i], logits[i], targets[static_cast<size_t>(rows[i])], grad_scale,
                         row_of(dlogits_RV, rows[i]), dlogits_RV.dtype());
  }
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
    Row logits = row_of(logits_RC, sampled[i]);
    const int64_t column = targets[at] - first_column;
    if (0 <= column && column < logits_RC.dim(1)) {
      verifier.compare("target_logit", sampled[i], column, static_cast<double>(states[at].target_logit),
                       logits[static_cast<size_t>(column)], 0);
    }
    logits.push_back(former[i]);  // as one more logit
    const SoftmaxBound exact = softmax_bound(logits);
    verifier.compare("log_sum_exp", sampled[i], 0, log_sum_exp(states[at]), exact.log_sum_exp, exact.bound);
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
  verifier.compare("loss_sum", 0, 0, sums.loss_sum, expected, kFloat32Rounding * magnitude);
  return sums;
}

void VerifyingOps::cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column,
                                                int64_t vocab_size, std::span<const int32_t> targets,
                                                ConstTensorView rows, float label_smoothing, float grad_scale,
                                                TensorView dlogits_RC) {
  TESSERA_CHECK(label_smoothing == 0, "not a case of a benchmark");
  const std::vector<int64_t> sampled = sample_rows(logits_RC);
  const std::vector<Row> logits = rows_of(logits_RC, sampled);  // dlogits may be logits
  ForwardingOps::cross_entropy_chunk_gradient(logits_RC, first_column, vocab_size, targets, rows,
                                              label_smoothing, grad_scale, dlogits_RC);
  Verifier verifier(call_name("cross_entropy_chunk_gradient", logits_RC, dlogits_RC), result_);
  for (size_t i = 0; i < sampled.size(); ++i) {
    const auto at = static_cast<size_t>(sampled[i]);
    verify_chunk_gradient(verifier, sampled[i], logits[i], log_sum_exp(softmax_rows(rows)[at]), first_column,
                          targets[at], grad_scale, row_of(dlogits_RC, sampled[i]), dlogits_RC.dtype());
  }
}

}  // namespace tessera
