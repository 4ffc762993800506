#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/activation_type.h"
#include "kernels/cross_entropy/cross_entropy_impl.h"

namespace tessera {

const DispatchTable<CrossEntropyKernels>& cross_entropy_table() {
  static const DispatchTable<CrossEntropyKernels> table("cross_entropy",
                                                        concat(cross_entropy_hwy(), cross_entropy_ref()));
  return table;
}

namespace {

// Logits a thread takes at a time: about 10 us of work.
constexpr int64_t kTaskElements = 16 * 1024;

int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, kTaskElements / width); }

// Shared by all rows of a call.
struct LossTerms {
  double smoothing;
  double vocab_size;
  double grad_scale;
};

// Columns [first_column, first_column + count) of a row.
struct Chunk {
  const float* logits;
  int64_t first_column;
  int64_t count;

  bool contains(int32_t column) const { return first_column <= column && column < first_column + count; }
};

void add_chunk(const CrossEntropyKernels& kernels, const Chunk& chunk, int32_t target, bool with_sum,
               SoftmaxRow* row) {
  if (chunk.contains(target)) row->target_logit = chunk.logits[target - chunk.first_column];
  if (with_sum) row->sum += kernels.sum(chunk.logits, chunk.count);
  const SoftmaxSum sum = kernels.softmax_sum(chunk.logits, chunk.count);
  if (std::isnan(row->max) || std::isnan(sum.max)) {
    row->max = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  if (std::isinf(sum.max)) return;  // only probabilities of zero
  const double rise = static_cast<double>(sum.max) - static_cast<double>(row->max);
  if (rise > 0) {
    row->sum_exp = row->sum_exp * std::exp(-rise) + sum.sum_exp;
    row->max = sum.max;
  } else {
    row->sum_exp += sum.sum_exp * std::exp(rise);
  }
}

double log_sum_exp(const SoftmaxRow& row) { return static_cast<double>(row.max) + std::log(row.sum_exp); }

double loss_of(const SoftmaxRow& row, const LossTerms& terms) {
  if (!std::isfinite(row.max)) return std::numeric_limits<double>::quiet_NaN();
  const double lse = log_sum_exp(row);
  double loss = (1 - terms.smoothing) * (lse - static_cast<double>(row.target_logit));
  if (terms.smoothing != 0) loss += terms.smoothing * (lse - row.sum / terms.vocab_size);
  return loss;
}

template <typename A>
void chunk_gradient(const CrossEntropyKernels& kernels, const Chunk& chunk, int32_t target,
                    const SoftmaxRow& row, const LossTerms& terms, A* dlogits) {
  if (!std::isfinite(row.max)) {
    std::fill_n(dlogits, chunk.count, from_float<A>(std::numeric_limits<float>::quiet_NaN()));
    return;
  }
  const double factor = terms.grad_scale / row.sum_exp;
  const double offset = terms.grad_scale * terms.smoothing / terms.vocab_size;
  if constexpr (std::is_same_v<A, float>) {
    kernels.gradient_f32(chunk.logits, chunk.count, row.max, factor, offset, dlogits);
  } else {
    kernels.gradient_bf16(chunk.logits, chunk.count, row.max, factor, offset, dlogits);
  }
  if (!chunk.contains(target)) return;
  // p - 1 is computed in double: the probability of a certain target is 1 except for the last bits.
  const double p = std::exp(static_cast<double>(row.target_logit) - log_sum_exp(row));
  const double dtarget = terms.grad_scale * (p - (1 - terms.smoothing) - terms.smoothing / terms.vocab_size);
  dlogits[target - chunk.first_column] = from_float<A>(static_cast<float>(dtarget));
}

LossTerms loss_terms(float label_smoothing, int64_t vocab_size, float grad_scale) {
  return {.smoothing = static_cast<double>(label_smoothing),
          .vocab_size = static_cast<double>(vocab_size),
          .grad_scale = static_cast<double>(grad_scale)};
}

int64_t count_targets(std::span<const int32_t> targets) {
  return std::ssize(targets) - std::count(targets.begin(), targets.end(), kIgnoredLabel);
}

void check_chunk(ConstTensorView logits_RC, std::span<const int32_t> targets,
                 std::span<const SoftmaxRow> rows) {
  TESSERA_CHECK(logits_RC.shape().rank() == 2 && logits_RC.dim(0) == std::ssize(targets) &&
                    rows.size() == targets.size() && logits_RC.dim(1) >= 1,
                "logits {}, {} targets, {} rows", logits_RC.shape().to_string(), targets.size(), rows.size());
}

}  // namespace

int64_t cross_entropy_scratch_bytes(int64_t rows) { return rows * static_cast<int64_t>(sizeof(double)); }

LossSums cross_entropy_with(const CrossEntropyKernels& kernels, ConstTensorView logits_RV,
                            std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                            TensorView dlogits_RV, std::span<std::byte> scratch, ThreadPool& pool) {
  TESSERA_CHECK(logits_RV.shape().rank() == 2, "logits {}", logits_RV.shape().to_string());
  const int64_t R = logits_RV.dim(0), V = logits_RV.dim(1);
  TESSERA_CHECK(static_cast<int64_t>(targets.size()) == R && V >= 1 &&
                    (dlogits_RV.empty() || dlogits_RV.shape() == logits_RV.shape()) &&
                    static_cast<int64_t>(scratch.size()) >= cross_entropy_scratch_bytes(R),
                "logits {}, targets {}, dlogits {}, scratch {} bytes", logits_RV.shape().to_string(),
                targets.size(), dlogits_RV.shape().to_string(), scratch.size());
  const float* logits = logits_RV.as<float>();
  const LossTerms terms = loss_terms(label_smoothing, V, grad_scale);
  auto* losses = reinterpret_cast<double*>(scratch.data());
  with_activation_type(dlogits_RV.empty() ? DType::kF32 : dlogits_RV.dtype(), [&]<typename A>(A) {
    A* const dlogits = dlogits_RV.empty() ? nullptr : dlogits_RV.as<A>();
    pool.parallel_blocks(R, rows_per_task(V), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int32_t target = targets[static_cast<size_t>(r)];
        A* drow = dlogits == nullptr ? nullptr : dlogits + r * V;
        if (target == kIgnoredLabel) {
          losses[r] = 0;
          if (drow != nullptr) std::fill_n(drow, V, A{});
          continue;
        }
        const Chunk whole = {logits + r * V, 0, V};
        SoftmaxRow row;
        add_chunk(kernels, whole, target, terms.smoothing != 0, &row);
        losses[r] = loss_of(row, terms);
        if (drow != nullptr) chunk_gradient(kernels, whole, target, row, terms, drow);
      }
    });
  });
  LossSums sums;
  for (int64_t r = 0; r < R; ++r) sums.loss_sum += losses[r];
  sums.num_targets = count_targets(targets);
  return sums;
}

void cross_entropy_add_chunk_with(const CrossEntropyKernels& kernels, ConstTensorView logits_RC,
                                  int64_t first_column, std::span<const int32_t> targets,
                                  float label_smoothing, std::span<SoftmaxRow> rows, ThreadPool& pool) {
  check_chunk(logits_RC, targets, rows);
  const int64_t R = logits_RC.dim(0), C = logits_RC.dim(1);
  const float* logits = logits_RC.as<float>();
  pool.parallel_blocks(R, rows_per_task(C), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto at = static_cast<size_t>(r);
      if (first_column == 0) rows[at] = {};
      if (targets[at] == kIgnoredLabel) continue;
      add_chunk(kernels, {logits + r * C, first_column, C}, targets[at], label_smoothing != 0, &rows[at]);
    }
  });
}

LossSums cross_entropy_loss(std::span<const SoftmaxRow> rows, std::span<const int32_t> targets,
                            int64_t vocab_size, float label_smoothing) {
  TESSERA_CHECK(rows.size() == targets.size(), "{} rows, {} targets", rows.size(), targets.size());
  const LossTerms terms = loss_terms(label_smoothing, vocab_size, /*grad_scale=*/0);
  LossSums sums;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (targets[r] != kIgnoredLabel) sums.loss_sum += loss_of(rows[r], terms);
  }
  sums.num_targets = count_targets(targets);
  return sums;
}

void cross_entropy_chunk_gradient_with(const CrossEntropyKernels& kernels, ConstTensorView logits_RC,
                                       int64_t first_column, int64_t vocab_size,
                                       std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                       float label_smoothing, float grad_scale, TensorView dlogits_RC,
                                       ThreadPool& pool) {
  check_chunk(logits_RC, targets, rows);
  const int64_t R = logits_RC.dim(0), C = logits_RC.dim(1);
  TESSERA_CHECK(dlogits_RC.shape() == logits_RC.shape() && first_column + C <= vocab_size,
                "logits {}, dlogits {}, column {} of {}", logits_RC.shape().to_string(),
                dlogits_RC.shape().to_string(), first_column, vocab_size);
  const float* logits = logits_RC.as<float>();
  const LossTerms terms = loss_terms(label_smoothing, vocab_size, grad_scale);
  with_activation_type(dlogits_RC.dtype(), [&]<typename A>(A) {
    A* const dlogits = dlogits_RC.as<A>();
    pool.parallel_blocks(R, rows_per_task(C), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto at = static_cast<size_t>(r);
        if (targets[at] == kIgnoredLabel) {
          std::fill_n(dlogits + r * C, C, A{});
        } else {
          chunk_gradient(kernels, {logits + r * C, first_column, C}, targets[at], rows[at], terms,
                         dlogits + r * C);
        }
      }
    });
  });
}

LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                       float grad_scale, TensorView dlogits_RV, std::span<std::byte> scratch,
                       ThreadPool& pool) {
  return cross_entropy_with(cross_entropy_table().chosen(), logits_RV, targets, label_smoothing, grad_scale,
                            dlogits_RV, scratch, pool);
}

void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                             std::span<const int32_t> targets, float label_smoothing,
                             std::span<SoftmaxRow> rows, ThreadPool& pool) {
  cross_entropy_add_chunk_with(cross_entropy_table().chosen(), logits_RC, first_column, targets,
                               label_smoothing, rows, pool);
}

void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                  std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                  float label_smoothing, float grad_scale, TensorView dlogits_RC,
                                  ThreadPool& pool) {
  cross_entropy_chunk_gradient_with(cross_entropy_table().chosen(), logits_RC, first_column, vocab_size,
                                    targets, rows, label_smoothing, grad_scale, dlogits_RC, pool);
}

}  // namespace tessera
