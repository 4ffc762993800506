#include "optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "platform/subnormals.h"
#include "tensor/arena.h"

namespace tessera {
namespace {

constexpr double kDecayRate = -0.8;
constexpr float kSquareEpsilon = 1e-30f;
constexpr double kClipThreshold = 1.0;

// Slabs of rows that threads sum side by side, each with the sums of all columns.
constexpr int64_t kMaxSlabs = 32;
// Columns whose sums a thread adds up at a time, and masters that it updates: 256 KiB of float32.
constexpr int64_t kColumnBlock = 512;
constexpr int64_t kMasterBlock = 64 * 1024;
// Sums side by side, so that the compiler can use vectors.
constexpr int64_t kLanes = 8;

// All but the rate of a matrix alone.
struct Factors {
  float* rate;          // with which all elements are updated
  double* column_sums;  // [slabs, C]
  double* slab_sums;    // [slabs]
  float* row;           // [R], 1 / sqrt(r_i / mean r)
  float* column;        // [C], 1 / sqrt(c_j)
};

Factors lay_out_factors(Arena& arena, const ParameterShape& shape) {
  const auto take = [&arena]<typename T>(int64_t count, T /*of*/) {
    return reinterpret_cast<T*>(arena.allocate_bytes(count * static_cast<int64_t>(sizeof(T))));
  };
  Factors out = {};
  out.rate = take(1, float());
  if (!shape.is_matrix()) return out;
  out.column_sums = take(std::min(shape.rows, kMaxSlabs) * shape.columns, double());
  out.slab_sums = take(kMaxSlabs, double());
  out.row = take(shape.rows, float());
  out.column = take(shape.columns, float());
  return out;
}

// Sum of value(j) for j in [0, count).
template <typename Value>
double lane_sum(int64_t count, const Value& value) {
  double lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value(j + lane);
  }
  for (; j < count; ++j) lanes[0] += value(j);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// The update of one parameter: values that all its elements share.
struct Scalars {
  float gradient_scale;
  double beta2;
  float kept;  // 1 - lr wd
  double learning_rate;

  // The moment after another mean of squares.
  float next(float moment, double mean) const {
    return static_cast<float>(beta2 * static_cast<double>(moment) + (1 - beta2) * mean);
  }
  // The learning rate for updates whose `count` elements have this sum of squares.
  float rate(double squares, int64_t count) const {
    const double rms = std::sqrt(squares / static_cast<double>(count));
    return static_cast<float>(learning_rate / std::max(1.0, rms / kClipThreshold));
  }
};

template <typename G>
class MatrixMoments {
 public:
  MatrixMoments(const ParameterShape& shape, const G* gradient, const Scalars& scalars,
                const Factors& factors, ThreadPool& pool)
      : rows_(shape.rows),
        columns_(shape.columns),
        num_slabs_(std::min(shape.rows, kMaxSlabs)),
        gradient_(gradient),
        scalars_(scalars),
        factors_(factors),
        pool_(pool) {}

  // Updates them and returns the rate for the elements.
  float update(float* row_moments, float* column_moments) {
    update_moments(row_moments, column_moments);
    return scalars_.rate(sum_of_squares(), rows_ * columns_);
  }

 private:
  template <typename Body>
  void for_each_slab(const Body& body) {
    pool_.parallel_for(num_slabs_, [&](int64_t slab) {
      body(slab, rows_ * slab / num_slabs_, rows_ * (slab + 1) / num_slabs_);
    });
  }
  float gradient(int64_t row, int64_t column) const {
    return to_float(gradient_[row * columns_ + column]) * scalars_.gradient_scale;
  }

  void update_moments(float* row_moments, float* column_moments) {
    for_each_slab([&](int64_t slab, int64_t begin, int64_t end) {
      double* const sums = factors_.column_sums + slab * columns_;
      std::fill_n(sums, columns_, 0.0);
      for (int64_t i = begin; i < end; ++i) {
        const double sum = lane_sum(columns_, [&](int64_t j) {
          const float g = gradient(i, j);
          const auto square = static_cast<double>(g * g + kSquareEpsilon);
          sums[j] += square;
          return square;
        });
        row_moments[i] = scalars_.next(row_moments[i], sum / static_cast<double>(columns_));
      }
    });
    pool_.parallel_blocks(columns_, kColumnBlock, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        double sum = 0;
        for (int64_t slab = 0; slab < num_slabs_; ++slab) sum += factors_.column_sums[slab * columns_ + j];
        column_moments[j] = scalars_.next(column_moments[j], sum / static_cast<double>(rows_));
        factors_.column[j] = 1 / std::sqrt(column_moments[j]);
      }
    });
    const double mean = lane_sum(rows_, [&](int64_t i) { return static_cast<double>(row_moments[i]); }) /
                        static_cast<double>(rows_);
    for (int64_t i = 0; i < rows_; ++i) {
      factors_.row[i] = static_cast<float>(1 / std::sqrt(static_cast<double>(row_moments[i]) / mean));
    }
  }

  // The squares of the updates before they are limited.
  double sum_of_squares() {
    for_each_slab([&](int64_t slab, int64_t begin, int64_t end) {
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) {
        sum += lane_sum(columns_, [&](int64_t j) {
          const auto u = static_cast<double>(factors_.row[i] * factors_.column[j] * gradient(i, j));
          return u * u;
        });
      }
      factors_.slab_sums[slab] = sum;
    });
    double total = 0;
    for (int64_t slab = 0; slab < num_slabs_; ++slab) total += factors_.slab_sums[slab];
    return total;
  }

  const int64_t rows_, columns_, num_slabs_;
  const G* const gradient_;
  const Scalars scalars_;
  const Factors factors_;
  ThreadPool& pool_;
};

// On one thread: vectors are short. Returns the rate for the elements.
template <typename G>
float update_vector_moments(int64_t count, const G* gradient, const Scalars& scalars, float* moments) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float g = to_float(gradient[i]) * scalars.gradient_scale;
    moments[i] = scalars.next(moments[i], static_cast<double>(g * g + kSquareEpsilon));
    const auto u = static_cast<double>(g / std::sqrt(moments[i]));
    squares += u * u;
  }
  return scalars.rate(squares, count);
}

// Elements [begin, end) of a block of a matrix, whose first one is `first` of the matrix.
template <typename Masters, typename G>
void update_matrix_masters(int64_t first, int64_t begin, int64_t end, int64_t columns, const Masters& masters,
                           const G* gradient, const Scalars& scalars, const Factors& factors) {
  for (int64_t i = begin; i < end;) {
    const float row = *factors.rate * factors.row[(first + i) / columns];
    int64_t column = (first + i) % columns;
    for (const int64_t row_end = std::min(end, i + columns - column); i < row_end; ++i, ++column) {
      const float change = row * factors.column[column] * (to_float(gradient[i]) * scalars.gradient_scale);
      masters.store(i, masters.load(i) * scalars.kept - change);
    }
  }
}

template <typename Masters, typename G>
void update_vector_masters(int64_t begin, int64_t end, const Masters& masters, const G* gradient,
                           const Scalars& scalars, float rate, const float* squares) {
  for (int64_t i = begin; i < end; ++i) {
    const float change = rate * (to_float(gradient[i]) * scalars.gradient_scale) / std::sqrt(squares[i]);
    masters.store(i, masters.load(i) * scalars.kept - change);
  }
}

Scalars scalars_of(const WholeParameter& parameter, const OptimizerStep& step, double weight_decay) {
  const double decay = parameter.weight_decay ? weight_decay : 0;
  return {.gradient_scale = static_cast<float>(step.gradient_scale),
          .beta2 = 1 - std::pow(static_cast<double>(step.step), kDecayRate),
          .kept = static_cast<float>(1 - step.learning_rate * decay),
          .learning_rate = step.learning_rate};
}

}  // namespace

void Adafactor::update(const OptimizerBlock& /*block*/, const OptimizerStep& /*step*/,
                       ThreadPool& /*pool*/) const {
  TESSERA_CHECK(false, "a part of a parameter");
}

int64_t Adafactor::workspace_bytes(const ParameterShape& shape, DType /*weight_dtype*/,
                                   int64_t /*num_threads*/) const {
  Arena arena = Arena::measuring();
  lay_out_factors(arena, shape);
  return arena.high_water_bytes();
}

void Adafactor::solve(const WholeParameter& parameter, const OptimizerStep& step, ThreadPool& pool) const {
  const ParameterShape& shape = parameter.shape;
  const Scalars scalars = scalars_of(parameter, step, weight_decay_);
  Arena arena(parameter.workspace);
  const Factors factors = lay_out_factors(arena, shape);
  const auto moments = [&](size_t tensor) { return reinterpret_cast<float*>(parameter.state[tensor]); };
  with_gradient(parameter, 0, [&](auto gradient) {
    if (shape.is_matrix()) {
      *factors.rate = MatrixMoments(shape, gradient, scalars, factors, pool).update(moments(0), moments(1));
    } else {
      const SubnormalsAreZero scope;  // as inside the pool
      *factors.rate = update_vector_moments(parameter.gradient.num_elements(), gradient, scalars, moments(2));
    }
  });
}

void Adafactor::update_masters(const WholeParameter& parameter, const WholeBlock& block,
                               const OptimizerStep& step, ThreadPool& pool) const {
  const ParameterShape& shape = parameter.shape;
  const Scalars scalars = scalars_of(parameter, step, weight_decay_);
  Arena arena(parameter.workspace);
  const Factors factors = lay_out_factors(arena, shape);
  const float* const squares = reinterpret_cast<const float*>(parameter.state[2]) + block.begin;
  with_gradient(parameter, block.begin, [&](auto gradient) {
    with_masters(block.weights, block.remainders, [&](auto masters) {
      pool.parallel_blocks(block.count, kMasterBlock, [&](int64_t begin, int64_t end) {
        if (shape.is_matrix()) {
          update_matrix_masters(block.begin, begin, end, shape.columns, masters, gradient, scalars, factors);
        } else {
          update_vector_masters(begin, end, masters, gradient, scalars, *factors.rate, squares);
        }
      });
    });
  });
}

}  // namespace tessera
