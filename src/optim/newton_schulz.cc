#include "optim/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "base/float_types.h"
#include "kernels/activation_type.h"
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
// Rows and columns of the blocks in which a matrix is transposed: 16 KiB of float32.
constexpr int64_t kTransposeBlock = 64;
// Columns of a Gram matrix that are computed at a time.
constexpr int64_t kGramStrip = 128;

// S is the smaller of the two dimensions, L the other.
struct Workspace {
  TensorView operand_SL;  // x or x^T in the products' type
  TensorView gram_SS;     // F32
  TensorView square_SS;   // F32, g^2, then b g + c g^2
  TensorView factor_SS;   // g, then b g + c g^2, in the products' type
  TensorView strip;       // F32, columns of a Gram matrix
  std::span<std::byte> scratch;
};

int64_t scratch_bytes(int64_t rows, int64_t columns, DType dtype, int64_t num_threads) {
  const int64_t small = std::min(rows, columns);
  const int64_t large = std::max(rows, columns);
  int64_t bytes = sum_of_squares_scratch_bytes(rows * columns);
  // The products below, each as gemm.h names its sizes.
  const int64_t strip = std::min(small, kGramStrip);
  for (const GemmLimits& product : {GemmLimits{small, {strip, large}, dtype, num_threads},
                                    GemmLimits{small, {large, small}, dtype, num_threads},
                                    GemmLimits{small, {small, large}, dtype, num_threads}}) {
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
  out.operand_SL = take(dtype, small, std::max(rows, columns));
  out.gram_SS = take(DType::kF32, small, small);
  out.square_SS = take(DType::kF32, small, small);
  out.factor_SS = take(dtype, small, small);
  out.strip = take(DType::kF32, small, std::min(small, kGramStrip));
  const int64_t bytes = scratch_bytes(rows, columns, dtype, num_threads);
  out.scratch = {arena.allocate_bytes(bytes), static_cast<size_t>(bytes)};
  return out;
}

// to_CR = from_RC^T, rounded to its type.
void round_transposed(ConstTensorView from_RC, TensorView to_CR, ThreadPool& pool) {
  const int64_t rows = from_RC.dim(0), columns = from_RC.dim(1);
  const float* const from = from_RC.as<float>();
  with_activation_type(to_CR.dtype(), [&]<typename A>(A) {
    A* const to = to_CR.as<A>();
    pool.parallel_blocks(rows, kTransposeBlock, [=](int64_t begin, int64_t end) {
      for (int64_t first = 0; first < columns; first += kTransposeBlock) {
        for (int64_t c = first; c < std::min(first + kTransposeBlock, columns); ++c) {
          for (int64_t r = begin; r < end; ++r) to[c * rows + r] = from_float<A>(from[r * columns + c]);
        }
      }
    });
  });
}

// Writes strip [S - first, C] to rows [first, S) and columns [first, first + C) of a symmetric matrix, and
// what is below the diagonal to its mirror image.
void place_strip(ConstTensorView strip, int64_t first, TensorView gram_SS, ThreadPool& pool) {
  const int64_t size = gram_SS.dim(0), columns = strip.dim(1);
  const float* const from = strip.as<float>();
  float* const to = gram_SS.as<float>();
  pool.parallel_blocks(strip.dim(0), kTransposeBlock, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(from + r * columns, columns, to + (first + r) * size + first);
    }
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = std::max(begin, columns); r < end; ++r) {
        to[(first + c) * size + first + r] = from[r * columns + c];
      }
    }
  });
}

// gram = x x^T, computed from its diagonal on, strip by strip, and mirrored.
void multiply_by_own_transpose(ConstTensorView x_SL, const Workspace& at, TensorView gram_SS,
                               ThreadPool& pool) {
  const int64_t size = x_SL.dim(0);
  for (int64_t begin = 0; begin < size; begin += kGramStrip) {
    const int64_t end = std::min(begin + kGramStrip, size);
    const TensorView strip(at.strip.bytes(), DType::kF32, {size - begin, end - begin});
    gemm_forward(x_SL.rows(begin, size), LinearWeight(x_SL.rows(begin, end)), {}, strip, at.scratch, pool);
    place_strip(strip, begin, gram_SS, pool);
  }
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
  const int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  int64_t computed = 0;  // elements of a Gram matrix
  for (int64_t begin = 0; begin < small; begin += kGramStrip) {
    computed += (small - begin) * std::min(kGramStrip, small - begin);
  }
  const auto both_grams = 2 * static_cast<double>(computed) * static_cast<double>(large + small);
  const auto last = 2 * static_cast<double>(small * small) * static_cast<double>(large);
  return kNumSteps * (both_grams + last);
}

int64_t newton_schulz_workspace_bytes(int64_t rows, int64_t columns, DType dtype, int64_t num_threads) {
  Arena arena = Arena::measuring();
  lay_out(arena, rows, columns, dtype, num_threads);
  return arena.high_water_bytes();
}

void newton_schulz(TensorView x_RC, DType dtype, std::span<std::byte> workspace, ThreadPool& pool) {
  const int64_t rows = x_RC.dim(0), columns = x_RC.dim(1);
  const bool is_tall = rows > columns;
  Arena arena(workspace);
  const Workspace at = lay_out(arena, rows, columns, dtype, pool.num_threads());
  const std::span values(x_RC.as<float>(), static_cast<size_t>(x_RC.num_elements()));
  const double norm = std::sqrt(sum_of_squares(values, at.scratch, pool));
  scale_by(static_cast<float>(1 / std::max(norm, kNormEpsilon)), x_RC, pool);
  for (int step = 0; step < kNumSteps; ++step) {
    if (is_tall) {
      round_transposed(x_RC, at.operand_SL, pool);
    } else {
      round_to(x_RC, at.operand_SL, pool);
    }
    multiply_by_own_transpose(at.operand_SL, at, at.gram_SS, pool);
    round_to(at.gram_SS, at.factor_SS, pool);
    multiply_by_own_transpose(at.factor_SS, at, at.square_SS, pool);
    combine(kC, at.square_SS, kB, at.gram_SS, pool);
    round_to(at.square_SS, at.factor_SS, pool);
    scale_by(kA, x_RC, pool);
    if (is_tall) {  // x += (x^T)^T factor
      gemm_backward_weight(at.operand_SL, at.factor_SS, x_RC, Update::kAdd, at.scratch, pool);
    } else {
      gemm_backward_input(at.factor_SS, LinearWeight(at.operand_SL), x_RC, Update::kAdd, at.scratch, pool);
    }
  }
}

}  // namespace tessera
