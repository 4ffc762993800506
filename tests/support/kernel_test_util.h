// For kernel tests: tensors between canaries, and comparisons against a float64 reference with a bound per
// element.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kernels/dispatch.h"
#include "kernels/expected.h"
#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

inline constexpr DType kActivationTypes[] = {DType::kBF16, DType::kF32};

// The first normal numbers of a seed, `count` or more. Most of the time of these tests would go into making
// the same ones again.
inline const std::vector<float>& normals(uint64_t seed, int64_t count) {
  thread_local std::map<uint64_t, std::vector<float>> known;
  if (known.size() > 16) known.clear();
  std::vector<float>& values = known[seed];
  const CounterRng rng(seed, 0);
  while (std::ssize(values) < count) {
    for (const float value : rng.normal_pair(values.size() / 2)) values.push_back(value);
  }
  return values;
}

// A tensor that starts one element after an aligned address, so that no kernel can rely on alignment, with
// canary bytes on both sides. Initially filled with NaN.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, Shape shape)
      : dtype_(dtype),
        shape_(shape),
        offset_bytes_(kGuardBytes + dtype_bytes(dtype)),
        bytes_(static_cast<size_t>(2 * kGuardBytes + dtype_bytes(dtype) * (shape.num_elements() + 1)),
               kCanary) {
    poison();
  }

  TensorView view() { return {data(), dtype_, shape_}; }
  ConstTensorView view() const { return {data(), dtype_, shape_}; }
  int64_t num_elements() const { return shape_.num_elements(); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }

  double operator[](int64_t i) const {
    return dtype_ == DType::kBF16 ? to_float(reinterpret_cast<const bf16*>(data())[i])
                                  : reinterpret_cast<const float*>(data())[i];
  }
  void set(int64_t i, float value) {
    if (dtype_ == DType::kBF16) {
      reinterpret_cast<bf16*>(data())[i] = to_bf16(value);
    } else {
      reinterpret_cast<float*>(data())[i] = value;
    }
  }

  // All bits one: NaN in every type.
  void poison() { std::memset(data(), 0xFF, static_cast<size_t>(view().size_bytes())); }
  void fill(float value) {
    for (int64_t i = 0; i < num_elements(); ++i) set(i, value);
  }
  GuardedTensor& fill_normal(uint64_t seed, float scale = 1, float mean = 0) {
    const float* const values = normals(seed, num_elements()).data();
    for (int64_t i = 0; i < num_elements(); ++i) set(i, mean + scale * values[i]);
    return *this;
  }

  std::vector<double> values() const { return values_of(view()); }
  std::string bits() const {
    return {reinterpret_cast<const char*>(data()), static_cast<size_t>(view().size_bytes())};
  }
  bool guards_intact() const {
    const auto begin = static_cast<size_t>(data() - bytes_.data());
    const size_t end = begin + static_cast<size_t>(view().size_bytes());
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if ((i < begin || i >= end) && bytes_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuardBytes = 64;
  static constexpr std::byte kCanary{0xA5};

  std::byte* data() { return bytes_.data() + offset_bytes_; }
  const std::byte* data() const { return bytes_.data() + offset_bytes_; }

  DType dtype_;
  Shape shape_;
  int64_t offset_bytes_;
  std::vector<std::byte> bytes_;
};

// The values that a call adds to; empty if it overwrites.
inline std::vector<double> former(const GuardedTensor& output, Update update) {
  return update == Update::kAdd ? output.values() : std::vector<double>();
}

// The values rounded to the dtype of a tensor.
inline GuardedTensor rounded(const std::vector<Expected>& expected, DType dtype, const Shape& shape) {
  GuardedTensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.set(i, static_cast<float>(expected[static_cast<size_t>(i)].value));
  }
  return tensor;
}

// These values and no others.
inline std::vector<Expected> exactly(const GuardedTensor& tensor) {
  std::vector<Expected> expected;
  for (const double value : tensor.values()) expected.push_back({value, 0});
  return expected;
}

// Checks that every element is within its bound after rounding to the dtype of `got`, and that nothing was
// written around them. Reports the worst one.
inline void expect_within(const GuardedTensor& got, const std::vector<Expected>& expected,
                          const std::string& context) {
  EXPECT_TRUE(got.guards_intact()) << context << ": wrote outside its output";
  ASSERT_EQ(got.num_elements(), std::ssize(expected)) << context;
  int64_t worst = -1;
  double worst_ratio = 1;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    const Expected& want = expected[static_cast<size_t>(i)];
    const double ratio = std::abs(got[i] - want.value) / want.bound_in(got.dtype());
    if (!(ratio <= worst_ratio)) {
      worst = i;
      worst_ratio = std::isnan(ratio) ? HUGE_VAL : ratio;
    }
  }
  if (worst < 0) return;
  const Expected& want = expected[static_cast<size_t>(worst)];
  ADD_FAILURE() << context << ", shape " << got.shape().to_string() << ", worst index " << worst
                << ": expected " << want.value << ", got " << got[worst] << ", bound " << want.bound
                << " + rounding, exceeded " << worst_ratio << " times";
}

// Checks for identical bits from pools of 1, 2 and 3 threads, and of 4 threads that share two cores. `run`
// fills and returns its outputs.
inline void expect_thread_independent(const std::function<std::vector<GuardedTensor>(ThreadPool& pool)>& run,
                                      const std::string& context) {
  ThreadPool one(1);
  const std::vector<GuardedTensor> reference = run(one);
  const auto compare = [&](ThreadPool& pool) {
    const std::vector<GuardedTensor> outputs = run(pool);
    ASSERT_EQ(outputs.size(), reference.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(outputs[i].bits() == reference[i].bits())
          << context << ": output " << i << " differs between 1 and " << pool.num_threads() << " threads, "
          << pool.threads_per_core() << " per core";
    }
  };
  for (const int64_t num_threads : {2, 3}) {
    ThreadPool pool(num_threads);
    compare(pool);
  }
  // The quota covers only one thread, so that none is pinned to a processor that does not exist.
  ThreadPool two_per_core(4, {.cpus = {0, 1, 2, 3}, .quota = 1, .cores = {{0, 2}, {1, 3}}});
  ASSERT_EQ(two_per_core.threads_per_core(), 2);
  compare(two_per_core);
}

// "hwy (avx2)" for a table row.
template <typename Kernels>
std::string describe(const Implementation<Kernels>& implementation) {
  return fmt::format("{} ({})", implementation.name, isa_name(implementation.isa));
}

// Scratch memory with the alignment kernels require.
class TestScratch {
 public:
  explicit TestScratch(int64_t size_bytes) : memory_(static_cast<size_t>(size_bytes + 64)) {
    void* start = memory_.data();
    size_t space = memory_.size();
    std::align(64, static_cast<size_t>(size_bytes), start, space);
    span_ = {static_cast<std::byte*>(start), static_cast<size_t>(size_bytes)};
    std::memset(span_.data(), 0xFF, span_.size());
  }
  std::span<std::byte> span() const { return span_; }

 private:
  std::vector<std::byte> memory_;
  std::span<std::byte> span_;
};

}  // namespace tessera
