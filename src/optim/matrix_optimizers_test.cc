// Muon and Adafactor against their formulas written out in float64, as they are in PyTorch
// (torch/optim/_muon.py) and Transformers (src/transformers/optimization.py, class Adafactor).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/rng.h"
#include "optim/adafactor.h"
#include "optim/muon.h"
#include "optim/newton_schulz.h"
#include "optim/optimizer_state.h"
#include "support/draws.h"
#include "test_folder.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;

// [rows, columns], row-major.
struct Matrix {
  int64_t rows, columns;
  Doubles values;

  double at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * columns + j)]; }
  double& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * columns + j)]; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out = {a.rows, b.columns, Doubles(static_cast<size_t>(a.rows * b.columns))};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j) out.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return out;
}

Matrix transposed(const Matrix& a) {
  Matrix out = {a.columns, a.rows, Doubles(a.values.size())};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) out.at(j, i) = a.at(i, j);
  }
  return out;
}

Matrix sum(double scale_a, const Matrix& a, double scale_b, const Matrix& b) {
  Matrix out = a;
  for (size_t i = 0; i < out.values.size(); ++i)
    out.values[i] = scale_a * a.values[i] + scale_b * b.values[i];
  return out;
}

double norm(const Doubles& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

double distance(const Doubles& a, const Doubles& b) {
  Doubles difference = a;
  for (size_t i = 0; i < a.size(); ++i) difference[i] -= b[i];
  return norm(difference);
}

// _zeropower_via_newtonschulz.
Matrix orthogonalized(const Matrix& gradient) {
  Matrix x = gradient.rows > gradient.columns ? transposed(gradient) : gradient;
  const double size = std::max(norm(x.values), 1e-7);
  for (double& value : x.values) value /= size;
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, transposed(x));
    const Matrix update = sum(-4.7750, gram, 2.0315, product(gram, gram));
    x = sum(3.4445, x, 1, product(update, x));
  }
  return gradient.rows > gradient.columns ? transposed(x) : x;
}

std::vector<float> normal_floats(int64_t count, uint64_t seed, float scale = 1) {
  const CounterRng rng(seed, 0);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(scale * rng.normal(static_cast<uint64_t>(i)));
  return values;
}

Doubles to_doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

constexpr double kLearningRate = 3e-2, kWeightDecay = 0.1, kGradientScale = 0.5;

// A parameter and its state in float64.
struct ExpectedParameter {
  ParameterShape shape;
  Doubles weight;
  Doubles first = {}, second = {};  // momentum or row means; column means or squares

  void muon(const Doubles& gradient, MuonRate rate) {
    first.resize(weight.size());
    Matrix update = {shape.rows, shape.columns, Doubles(weight.size())};
    for (size_t i = 0; i < weight.size(); ++i) {
      const double g = kGradientScale * gradient[i];
      first[i] += (1 - 0.95) * (g - first[i]);
      update.values[i] = g + 0.95 * (first[i] - g);
    }
    const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns);
    const double ratio = rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                                     : 0.2 * std::sqrt(std::max(rows, columns));
    const Matrix direction = orthogonalized(update);
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] =
          weight[i] * (1 - kLearningRate * kWeightDecay) - kLearningRate * ratio * direction.values[i];
    }
  }

  void adafactor(const Doubles& gradient, int64_t step) {
    const double beta2 = 1 - std::pow(static_cast<double>(step), -0.8);
    const auto next = [&](double& moment, double mean) { moment = beta2 * moment + (1 - beta2) * mean; };
    const auto square = [&](size_t i) {
      return kGradientScale * gradient[i] * kGradientScale * gradient[i] + 1e-30;
    };
    Doubles update(weight.size());
    if (shape.is_matrix()) {
      const auto rows = static_cast<size_t>(shape.rows), columns = static_cast<size_t>(shape.columns);
      first.resize(rows);
      second.resize(columns);
      Doubles row_sums(rows), column_sums(columns);
      for (size_t i = 0; i < weight.size(); ++i) {
        row_sums[i / columns] += square(i);
        column_sums[i % columns] += square(i);
      }
      double mean = 0;
      for (size_t i = 0; i < rows; ++i) next(first[i], row_sums[i] / static_cast<double>(columns));
      for (size_t j = 0; j < columns; ++j) next(second[j], column_sums[j] / static_cast<double>(rows));
      for (const double value : first) mean += value / static_cast<double>(rows);
      for (size_t i = 0; i < weight.size(); ++i) {
        update[i] = kGradientScale * gradient[i] / std::sqrt(first[i / columns] / mean) /
                    std::sqrt(second[i % columns]);
      }
    } else {
      second.resize(weight.size());
      for (size_t i = 0; i < weight.size(); ++i) {
        next(second[i], square(i));
        update[i] = kGradientScale * gradient[i] / std::sqrt(second[i]);
      }
    }
    const double rms = norm(update) / std::sqrt(static_cast<double>(update.size()));
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] =
          weight[i] * (1 - kLearningRate * kWeightDecay) - kLearningRate * update[i] / std::max(1.0, rms);
    }
  }
};

constexpr ParameterShape kShapes[] = {{24, 80, true}, {80, 24, true},  {33, 33, true}, {1, 70, true},
                                      {70, 1, true},  {131, 57, true}, {5, 300, true}, {64, 64, true}};

std::unique_ptr<const Optimizer> make_matrix_optimizer(OptimizerForm form,
                                                       MuonRate rate = MuonRate::kMatchRmsAdamw) {
  return make_optimizer({.form = form, .weight_decay = kWeightDecay, .muon_rate = rate});
}

// All shapes as parameters of one flat array, with gaps, and a vector and an embedding after them.
struct MatrixRun {
  std::vector<ParameterRange> ranges;
  std::vector<float> weights;
  std::vector<bf16> half_weights;
  std::vector<float> gradients;
  std::vector<bf16> half_gradients;
  ThreadPool pool;
  std::unique_ptr<OptimizerState> state;

  MatrixRun(std::unique_ptr<const Optimizer> optimizer, DType weight_dtype, DType gradient_dtype,
            int64_t num_threads, const std::optional<StateFileSettings>& file = {})
      : pool(num_threads) {
    int64_t at = 3;
    const auto add = [&](const ParameterShape& shape, int64_t count) {
      ranges.push_back({.begin = at, .count = count, .weight_decay = true, .shape = shape});
      at += count + 5;
    };
    for (const ParameterShape& shape : kShapes) add(shape, shape.rows * shape.columns);
    add({}, 77);
    add({90, 16, false}, 90 * 16);
    weights = normal_floats(at, 1, 0.1f);
    half_weights.resize(weights.size());
    gradients.resize(weights.size());
    half_gradients.resize(weights.size());
    const bool is_half = weight_dtype == DType::kBF16, half_gradient = gradient_dtype == DType::kBF16;
    state = std::make_unique<OptimizerState>(std::move(optimizer), ranges,
                                             is_half ? TensorView(half_weights.data(), weight_dtype, {at})
                                                     : TensorView(weights.data(), weight_dtype, {at}),
                                             half_gradient
                                                 ? TensorView(half_gradients.data(), gradient_dtype, {at})
                                                 : TensorView(gradients.data(), gradient_dtype, {at}),
                                             pool, std::nullopt, file);
    state->write_master(0, normal_floats(at, 1, 0.1f));
  }

  // Gradients that BF16 holds exactly.
  void step(int64_t step) {
    const std::vector<float> values = normal_floats(std::ssize(weights), static_cast<uint64_t>(10 + step));
    for (size_t i = 0; i < values.size(); ++i) {
      half_gradients[i] = to_bf16(values[i]);
      gradients[i] = to_float(half_gradients[i]);
    }
    state->update({step, kLearningRate, kGradientScale});
  }
  std::vector<float> masters() const {
    std::vector<float> values(weights.size());
    state->read_master(0, values);
    return values;
  }
  Doubles of(const ParameterRange& range, std::span<const float> values) const {
    return to_doubles(values.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.count)));
  }
};

struct MatrixCase {
  OptimizerForm optimizer;
  DType weight_dtype;
  MuonRate rate;
  double tolerance;  // of the change of a parameter, relative

  friend void PrintTo(const MatrixCase& which, std::ostream* out) {
    *out << word_of(which.optimizer) << ", " << dtype_name(which.weight_dtype)
         << (which.rate == MuonRate::kMatchRmsAdamw ? ", rate of AdamW" : "");
  }
};

class MatrixOptimizer : public testing::TestWithParam<MatrixCase> {};

// The tolerance with BF16: each of 5 steps adds 2^-9 (4.8 g - 2 g^2) to factors of 0.7 to 3.4, where both
// terms nearly cancel, and the steps after it amplify that by up to 3.
INSTANTIATE_TEST_SUITE_P(
    Forms, MatrixOptimizer,
    testing::Values(MatrixCase{OptimizerForm::kMuon, DType::kF32, MuonRate::kOriginal, 1e-4},
                    MatrixCase{OptimizerForm::kMuon, DType::kF32, MuonRate::kMatchRmsAdamw, 1e-4},
                    MatrixCase{OptimizerForm::kMuon, DType::kBF16, MuonRate::kMatchRmsAdamw, 0.1},
                    MatrixCase{OptimizerForm::kAdafactor, DType::kF32, MuonRate::kOriginal, 1e-5},
                    MatrixCase{OptimizerForm::kAdafactor, DType::kBF16, MuonRate::kOriginal, 1e-5}));

TEST_P(MatrixOptimizer, FollowsTheFormulaInFloat64) {
  const MatrixCase& which = GetParam();
  MatrixRun run(make_matrix_optimizer(which.optimizer, which.rate), which.weight_dtype, DType::kF32, 2);
  const bool is_muon = which.optimizer == OptimizerForm::kMuon;
  std::vector<ExpectedParameter> expected;
  for (const ParameterRange& range : run.ranges) {
    if (is_muon && !range.shape.is_hidden) continue;  // AdamW's
    expected.push_back({range.shape, run.of(range, run.masters())});
  }
  for (int64_t step = 1; step <= 4; ++step) {
    const std::vector<float> before = run.masters();
    run.step(step);
    const std::vector<float> after = run.masters();
    for (size_t i = 0; i < expected.size(); ++i) {
      const ParameterRange& range = run.ranges[i];
      const Doubles gradient = run.of(range, run.gradients);
      ExpectedParameter& parameter = expected[i];
      const Doubles start = parameter.weight;
      is_muon ? parameter.muon(gradient, which.rate) : parameter.adafactor(gradient, step);
      const double error = distance(run.of(range, after), parameter.weight);
      EXPECT_LE(error, static_cast<double>(step) * which.tolerance * distance(parameter.weight, start))
          << "step " << step << ", [" << range.shape.rows << ", " << range.shape.columns << "]";
    }
  }
}

TEST_P(MatrixOptimizer, DependsNeitherOnThreadsNorOnTheTypeOfGradients) {
  const MatrixCase& which = GetParam();
  const auto train = [&](DType gradient_dtype, int64_t num_threads) {
    MatrixRun run(make_matrix_optimizer(which.optimizer), which.weight_dtype, gradient_dtype, num_threads);
    for (int64_t step = 1; step <= 3; ++step) run.step(step);
    return run.masters();
  };
  const std::vector<float> expected = train(DType::kF32, 1);
  EXPECT_EQ(train(DType::kF32, 3), expected);
  EXPECT_EQ(train(DType::kBF16, 2), expected);
}

TEST_P(MatrixOptimizer, GoesOnFromItsStateInOtherPlaces) {
  const MatrixCase& which = GetParam();
  const auto make = [&] {
    return std::make_unique<MatrixRun>(make_matrix_optimizer(which.optimizer), which.weight_dtype,
                                       DType::kF32, 2);
  };
  const auto whole = make(), second = make();
  for (int64_t step = 1; step <= 2; ++step) whole->step(step);
  second->state->write_master(0, whole->masters());
  const StateTensors tensors = whole->state->optimizer().state_tensors();
  for (const ParameterRange& range : whole->ranges) {
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const int64_t count = num_values(tensors[tensor].extent, range.shape, range.count);
      std::vector<float> values(static_cast<size_t>(count));
      if (count == 0) continue;
      whole->state->read(state_kind(tensor), range.begin, range.state_begin, values);
      EXPECT_GT(norm(to_doubles(values)), 0) << tensors[tensor].name;
      second->state->write(state_kind(tensor), range.begin, range.state_begin, values);
      if (count < range.count) {
        EXPECT_THROW(whole->state->read(state_kind(tensor), range.begin, range.state_begin + 1, values),
                     Error);
      }
    }
  }
  whole->step(3);
  second->step(3);
  EXPECT_EQ(second->masters(), whole->masters());
}

// Every value of the state, in the order of ranges and tensors.
std::vector<float> state_values(const MatrixRun& run) {
  std::vector<float> all;
  const StateTensors tensors = run.state->optimizer().state_tensors();
  for (const ParameterRange& range : run.ranges) {
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      std::vector<float> values(
          static_cast<size_t>(num_values(tensors[tensor].extent, range.shape, range.count)));
      if (values.empty()) continue;
      run.state->read(state_kind(tensor), range.begin, range.state_begin, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

// Chunks of the files have 4,096 elements: most matrices begin or end within one, one has several.
TEST_P(MatrixOptimizer, HasTheSameBitsInFiles) {
  const MatrixCase& which = GetParam();
  const TestFolder folder;
  const StateFileSettings file = {.path = folder / "state"};
  MatrixRun memory(make_matrix_optimizer(which.optimizer), which.weight_dtype, DType::kBF16, 2);
  MatrixRun disk(make_matrix_optimizer(which.optimizer), which.weight_dtype, DType::kBF16, 2, file);
  for (int64_t step = 1; step <= 3; ++step) {
    memory.step(step);
    disk.step(step);
    ASSERT_EQ(disk.masters(), memory.masters()) << step;
    ASSERT_EQ(state_values(disk), state_values(memory)) << step;
  }
  // A step in pieces, each announced before the one before it.
  for (MatrixRun* run : {&memory, &disk}) {
    const int64_t last = run->state->num_ranges();
    for (int64_t end = last; end > 0;) {
      const int64_t begin = std::max<int64_t>(0, end - 3);
      run->state->announce(std::max<int64_t>(0, begin - 3), begin);
      run->state->update(begin, end, {4, kLearningRate, kGradientScale});
      end = begin;
    }
  }
  EXPECT_EQ(disk.masters(), memory.masters());
  EXPECT_EQ(state_values(disk), state_values(memory));
  const bool is_muon = which.optimizer == OptimizerForm::kMuon;
  const bool has_file = is_muon || which.weight_dtype == DType::kBF16;
  EXPECT_EQ(disk.state->file_statistics().bytes_written > 0, has_file);
  disk.state->discard_tensors();
  EXPECT_EQ(disk.masters(), memory.masters());
}

TEST(StateOnDisk, IsWhatHasAValuePerElement) {
  const std::vector<ParameterRange> ranges = {
      {.begin = 0, .count = 1 << 20, .weight_decay = true, .shape = {1024, 1024, true}},
      {.begin = 1 << 20, .count = 1 << 18, .weight_decay = true, .shape = {512, 512, false}},
      {.begin = (1 << 20) + (1 << 18), .count = 1024, .weight_decay = false}};
  const int64_t hidden = 1 << 20, others = (1 << 18) + 1024, all = hidden + others;
  const ValueCounts counts(all, ranges);
  const auto bytes_of = [&](StateTensors tensors, DType dtype) {
    return state_on_disk(tensors, dtype, counts, 3);
  };
  // Files end with a whole chunk of 1/64 of their elements.
  const auto expect_near = [](int64_t bytes, int64_t expected) {
    EXPECT_GE(bytes, expected);
    EXPECT_LE(bytes, expected * 21 / 20);
  };
  const StateOnDisk muon = bytes_of(Muon::kStateTensors, DType::kBF16);
  expect_near(muon.file_bytes, 4 * hidden + 8 * others + 2 * all);
  expect_near(muon.discarded_bytes, 4 * hidden + 8 * others);
  expect_near(bytes_of(Muon::kStateTensors, DType::kF32).file_bytes, 4 * hidden + 8 * others);
  const StateOnDisk adafactor = bytes_of(Adafactor::kStateTensors, DType::kBF16);
  expect_near(adafactor.file_bytes, 2 * all);
  EXPECT_EQ(adafactor.discarded_bytes, 0);
  const StateOnDisk nothing = bytes_of(Adafactor::kStateTensors, DType::kF32);
  EXPECT_EQ(nothing.file_bytes, 0);
  EXPECT_EQ(nothing.memory_bytes, 4 * (2 * 1024 + 2 * 512 + 1024));
}

TEST(Muon, TrainsOtherParametersLikeAdamW) {
  MatrixRun muon(make_matrix_optimizer(OptimizerForm::kMuon), DType::kBF16, DType::kF32, 2);
  MatrixRun adamw(make_matrix_optimizer(OptimizerForm::kAdamW), DType::kBF16, DType::kF32, 2);
  for (int64_t step = 1; step <= 3; ++step) {
    muon.step(step);
    adamw.step(step);
  }
  for (const ParameterRange& range : muon.ranges) {
    const bool are_equal = muon.of(range, muon.masters()) == adamw.of(range, adamw.masters());
    EXPECT_EQ(are_equal, !range.shape.is_hidden)
        << "[" << range.shape.rows << ", " << range.shape.columns << "]";
  }
}

Matrix orthogonalized_by_tessera(int64_t rows, int64_t columns, std::vector<float> values, DType dtype) {
  ThreadPool pool(2);
  std::vector<std::byte> memory(
      static_cast<size_t>(newton_schulz_workspace_bytes(rows, columns, dtype, 2) + 64));
  const auto skipped = (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  newton_schulz(TensorView(values.data(), DType::kF32, {rows, columns}), dtype,
                std::span(memory).subspan(skipped), pool);
  return {rows, columns, to_doubles(values)};
}

// Sizes are drawn around the 128 columns of a Gram matrix that are computed at a time.
TEST(NewtonSchulz, IsTheIterationInDoubles) {
  const CounterRng rng(11, 0);
  for (uint64_t draw = 0; draw < draws(6, 3); ++draw) {
    const auto small = static_cast<int64_t>(1 + rng.uniform(2 * draw) * 270);
    const auto large = small + static_cast<int64_t>(rng.uniform(2 * draw + 1) * 100);
    const auto [rows, columns] = draw % 2 == 0 ? std::pair(small, large) : std::pair(large, small);
    const std::vector<float> values = normal_floats(rows * columns, draw);
    const Matrix expected = orthogonalized({rows, columns, to_doubles(values)});
    for (const auto& [dtype, bound] : {std::pair{DType::kF32, 1e-4}, {DType::kBF16, 0.05}}) {
      const Matrix found = orthogonalized_by_tessera(rows, columns, values, dtype);
      EXPECT_LT(norm(sum(1, found, -1, expected).values), bound * norm(expected.values))
          << dtype_name(dtype) << " [" << rows << ", " << columns << "]";
    }
  }
}

TEST(NewtonSchulz, BringsSingularValuesCloseToOne) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{20, 200}, {200, 20}}) {
      Matrix x = orthogonalized_by_tessera(rows, columns, normal_floats(rows * columns, 3, 1e-4f), dtype);
      if (rows > columns) x = transposed(x);
      // Eigenvalues of x x^T by their bounds: x x^T v for some v stays between 0.6^2 and 1.3^2 of |v|.
      const Matrix gram = product(x, transposed(x));
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const Matrix v = {gram.rows, 1, to_doubles(normal_floats(gram.rows, 100 + seed))};
        const double ratio = norm(product(gram, v).values) / norm(v.values);
        EXPECT_GT(ratio, 0.36);
        EXPECT_LT(ratio, 1.69);
      }
    }
  }
}

TEST(Adafactor, AGradientOfZeroMovesNothing) {
  MatrixRun run(make_optimizer({.form = OptimizerForm::kAdafactor}), DType::kF32, DType::kF32, 1);
  const std::vector<float> before = run.masters();
  run.state->update({1, kLearningRate});
  EXPECT_EQ(run.masters(), before);
}

}  // namespace
}  // namespace tessera
