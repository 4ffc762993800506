#include "devices/measure/thread_calibration.h"

#include <emmintrin.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/memory.h"
#include "base/text.h"
#include "devices/measure/measure_in_turn.h"
#include "devices/measure/random_tensor.h"
#include "devices/measure/statistics.h"
#include "kernels/gemm/gemm_impl.h"

namespace tessera {
namespace {

// y = x w^T with a block of w per core: 0.5 GFLOP and 1 MiB of weights per core, about a millisecond.
constexpr int64_t kTokens = 512;
constexpr int64_t kDepth = 1024;
constexpr int64_t kColumnsPerCore = 512;

class ColdProduct {
 public:
  // For `most`, the larger pool, and for smaller pools.
  ColdProduct(int64_t num_cores, ThreadPool& most)
      : columns_(num_cores * kColumnsPerCore),
        x_(DType::kBF16, {kTokens, kDepth}, 1, 1, most),
        w_(DType::kBF16, {columns_, kDepth}, 2, 1, most),
        y_(DType::kBF16, {kTokens, columns_}, 3, 1, most),
        packed_(packed_weight_bytes(columns_, kDepth, DType::kBF16)),
        scratch_(
            gemm_scratch_bytes({kTokens, {columns_, kDepth, packed_rows()}, DType::kBF16, most.num_threads()},
                               /*training=*/false)) {
    if (packed_.size_bytes() > 0) pack_linear_weight(w_.view(), {packed_.data()}, {0, columns_}, most);
  }

  // 10^12 operations per second.
  double measure(ThreadPool& pool) {
    forget_weights(pool);
    const LinearWeight weight =
        packed_rows() > 0 ? LinearWeight(w_.view(), {packed_.data()}) : LinearWeight(w_.view());
    const double seconds =
        seconds_of([&] { gemm_forward(x_.view(), weight, {}, y_.view(), scratch_.as<std::byte>(), pool); });
    return static_cast<double>(2 * kTokens * kDepth * columns_) * 1e-12 / seconds;
  }

 private:
  int64_t packed_rows() const { return packed_.size_bytes() > 0 ? columns_ : 0; }

  // Evicts the weights from all caches, as a layer's weights are by the time a step returns to it.
  void forget_weights(ThreadPool& pool) {
    constexpr int64_t kFlushedBytes = int64_t{64} << 10;
    const auto flush = [&](const std::byte* data, int64_t size_bytes) {
      pool.parallel_blocks(size_bytes, kFlushedBytes, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; at += kCacheLineBytes) _mm_clflush(data + at);
      });
    };
    flush(w_.view().bytes(), w_.view().size_bytes());
    flush(packed_.data(), packed_.size_bytes());
  }

  int64_t columns_;
  RandomTensor x_, w_, y_;
  PageBuffer packed_, scratch_;
};

}  // namespace

std::string ThreadCalibration::describe() const {
  return fmt::format("{} {:.3g} TFLOPS, {} threads {:.3g}, {:.2f} times as fast",
                     count_of(one_per_core.num_threads, "thread"), one_per_core.tflops,
                     two_per_core.num_threads, two_per_core.tflops, speedup);
}

ThreadCalibration judge_rounds(int64_t num_cores, std::span<const double> one_per_core, int64_t num_cpus,
                               std::span<const double> two_per_core) {
  const double best_one = *std::max_element(one_per_core.begin(), one_per_core.end());
  const double best_two = *std::max_element(two_per_core.begin(), two_per_core.end());
  const double median = quartiles(paired_ratios(two_per_core, one_per_core)).median;
  return {{num_cores, best_one}, {num_cpus, best_two}, std::min(median, best_two / best_one)};
}

std::optional<ThreadCalibration> calibrate_threads(const CpuLimits& limits) {
  const int64_t num_cores = limits.num_cores(), num_cpus = std::ssize(limits.cpus);
  if (num_cores == num_cpus || !limits.can_spin(num_cpus)) return std::nullopt;
  if (gemm_table().chosen_implementation().isa == Isa::kRef) return std::nullopt;
  ThreadPool one_per_core(num_cores, limits), two_per_core(num_cpus, limits);
  ColdProduct product(num_cores, two_per_core);
  const std::array<Participant, 2> participants = {[&] { return product.measure(one_per_core); },
                                                   [&] { return product.measure(two_per_core); }};
  const auto speeds = measure_in_turn(participants, {.seconds = 0.03, .min_rounds = 3});
  return judge_rounds(num_cores, speeds[0], num_cpus, speeds[1]);
}

}  // namespace tessera
