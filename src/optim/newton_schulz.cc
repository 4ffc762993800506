#include "optim/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "tensor/arena.h"

namespace tessera {
namespace {

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr int kNumSteps = 5;
constexpr double kNormEpsilon = 1e-7;

// Elements a thread takes at a time: 128 KiB of float32.
constexpr int64_t kScaleBlock = 32 * 1024;

// S is the smaller of the two dimensions.
struct Workspace {
  TensorView operand_RC;  // x in the products' type
  TensorView gram_SS;     // F32
  TensorView square_SS;   // F32, g^2, then b g + c g^2
  TensorView factor_SS;   // g, then b g + c g^2, in the products' type
  std::span<std::byte> scratch;
};

int64_t scratch_bytes(int64_t rows, int64_t columns, DType dtype, int64_t num_threads) {
  const int64_t small = std::min(rows, columns);
  int64_t bytes = sum_of_squares_scratch_bytes(rows * columns);
  // The products below, each as gemm.h names its sizes.
  for (const GemmLimits& product : {GemmLimits{rows, {small, columns}, dtype, num_threads},
                                    GemmLimits{small, {small, small}, dtype, num_threads}}) {
    bytes = std::max(bytes, gemm_scratch_bytes(product));
  }
  return bytes;
}

Workspace lay_out(Arena& arena, int64_t rows, int64_t columns, DType dtype, int64_t num_threads) {
  const int64_t small = std::min(rows, columns);
  const auto take = [&arena](DType type, int64_t m, int64_t n) {
    return TensorView(arena.allocate_bytes(m * n * dtype_bytes(type)), type, {m, n});
  };
  Workspace out;
  out.operand_RC = take(dtype, rows, columns);
  out.gram_SS = take(DType::kF32, small, small);
  out.square_SS = take(DType::kF32, small, small);
  out.factor_SS = take(dtype, small, small);
  const int64_t bytes = scratch_bytes(rows, columns, dtype, num_threads);
  out.scratch = {arena.allocate_bytes(bytes), static_cast<size_t>(bytes)};
  return out;
}

// x = scale x + other_scale other.
void combine(float scale, TensorView x, float other_scale, ConstTensorView other, ThreadPool& pool) {
  float* const to = x.as<float>();
  const float* const from = other.as<float>();
  pool.parallel_blocks(x.num_elements(), kScaleBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = scale * to[i] + other_scale * from[i];
  });
}

void scale_by(float scale, TensorView x, ThreadPool& pool) {
  float* const to = x.as<float>();
  pool.parallel_blocks(x.num_elements(), kScaleBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] *= scale;
  });
}

}  // namespace

double newton_schulz_flop(int64_t rows, int64_t columns) {
  const auto small = static_cast<double>(std::min(rows, columns));
  const auto large = static_cast<double>(std::max(rows, columns));
  return kNumSteps * 2 * small * small * (2 * large + small);
}

int64_t newton_schulz_workspace_bytes(int64_t rows, int64_t columns, DType dtype, int64_t num_threads) {
  Arena arena = Arena::measuring();
  lay_out(arena, rows, columns, dtype, num_threads);
  return arena.high_water_bytes();
}

void newton_schulz(TensorView x_RC, DType dtype, std::span<std::byte> workspace, ThreadPool& pool) {
  const int64_t rows = x_RC.dim(0), columns = x_RC.dim(1);
  Arena arena(workspace);
  const Workspace at = lay_out(arena, rows, columns, dtype, pool.num_threads());
  const std::span values(x_RC.as<float>(), static_cast<size_t>(x_RC.num_elements()));
  const double norm = std::sqrt(sum_of_squares(values, at.scratch, pool));
  scale_by(static_cast<float>(1 / std::max(norm, kNormEpsilon)), x_RC, pool);
  for (int step = 0; step < kNumSteps; ++step) {
    round_to(x_RC, at.operand_RC, pool);
    if (rows <= columns) {
      gemm_forward(at.operand_RC, at.operand_RC, {}, at.gram_SS, at.scratch, pool);
    } else {
      gemm_backward_weight(at.operand_RC, at.operand_RC, at.gram_SS, Update::kOverwrite, at.scratch, pool);
    }
    round_to(at.gram_SS, at.factor_SS, pool);
    gemm_forward(at.factor_SS, at.factor_SS, {}, at.square_SS, at.scratch, pool);  // g is symmetric
    combine(kC, at.square_SS, kB, at.gram_SS, pool);
    round_to(at.square_SS, at.factor_SS, pool);
    scale_by(kA, x_RC, pool);
    const TensorView left = rows <= columns ? at.factor_SS : at.operand_RC;
    const TensorView right = rows <= columns ? at.operand_RC : at.factor_SS;
    gemm_backward_input(left, LinearWeight(right), x_RC, Update::kAdd, at.scratch, pool);
  }
}

}  // namespace tessera
