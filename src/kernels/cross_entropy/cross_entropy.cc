#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/cross_entropy/cross_entropy_impl.h"

namespace tessera {

const DispatchTable<CrossEntropyKernels>& cross_entropy_table() {
  static const DispatchTable<CrossEntropyKernels> table("cross_entropy",
                                                        concat(cross_entropy_hwy(), cross_entropy_ref()));
  return table;
}

// Logits a thread takes at a time: about 10 us of work.
constexpr int64_t kTaskElements = 16 * 1024;

int64_t cross_entropy_scratch_bytes(int64_t rows) { return rows * static_cast<int64_t>(sizeof(double)); }

LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                       float grad_scale, TensorView dlogits_RV, std::span<std::byte> scratch,
                       ThreadPool& pool) {
  return cross_entropy_with(cross_entropy_table().chosen(), logits_RV, targets, label_smoothing, grad_scale,
                            dlogits_RV, scratch, pool);
}

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
  auto* losses = reinterpret_cast<double*>(scratch.data());
  const auto run = [&]<typename A>(A* dlogits,
                                   double (*row)(const float*, int64_t, int32_t, float, float, A*)) {
    pool.parallel_blocks(R, std::max<int64_t>(1, kTaskElements / V), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int32_t target = targets[static_cast<size_t>(r)];
        A* drow = dlogits == nullptr ? nullptr : dlogits + r * V;
        if (target == kIgnoredLabel) {
          losses[r] = 0;
          if (drow != nullptr) std::fill_n(drow, V, A{});
        } else {
          losses[r] = row(logits + r * V, V, target, label_smoothing, grad_scale, drow);
        }
      }
    });
  };
  if (dlogits_RV.empty()) {
    run(static_cast<float*>(nullptr), kernels.row_f32);
  } else if (dlogits_RV.dtype() == DType::kF32) {
    run(dlogits_RV.as<float>(), kernels.row_f32);
  } else {
    run(dlogits_RV.as<bf16>(), kernels.row_bf16);
  }
  LossSums sums;
  for (int64_t r = 0; r < R; ++r) sums.loss_sum += losses[r];
  sums.num_targets = R - std::count(targets.begin(), targets.end(), kIgnoredLabel);
  return sums;
}

}  // namespace tessera
