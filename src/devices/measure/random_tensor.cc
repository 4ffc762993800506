#include "devices/measure/random_tensor.h"

#include <algorithm>
#include <array>

#include "base/rng.h"

namespace tessera {
namespace {

constexpr int64_t kPatternLength = 65521;

const std::array<float, kPatternLength>& normal_pattern() {
  static const auto pattern = [] {
    std::array<float, kPatternLength> values = {};
    const CounterRng rng(1, 0);
    for (size_t i = 0; i < values.size(); ++i) values[i] = rng.normal(i);
    return values;
  }();
  return pattern;
}

template <typename T>
void fill(T* values, int64_t count, uint64_t seed, float scale, ThreadPool& pool) {
  const std::array<float, kPatternLength>& pattern = normal_pattern();
  constexpr int64_t kBlock = int64_t{1} << 20;
  const auto start = static_cast<int64_t>(seed * 7919 % kPatternLength);
  pool.parallel_blocks(count, kBlock, [&](int64_t begin, int64_t end) {
    int64_t at = (start + begin) % kPatternLength;
    for (int64_t i = begin; i < end; ++i) {
      values[i] = from_float<T>(scale * pattern[static_cast<size_t>(at)]);
      if (++at == kPatternLength) at = 0;
    }
  });
}

// Copies begin on cache lines, one line past a multiple of 4 KiB, so that they do not all compete for the
// same cache sets.
int64_t copy_stride(DType dtype, const Shape& shape) {
  return round_up(shape.num_elements() * dtype_bytes(dtype), 4096) + kCacheLineBytes;
}

}  // namespace

void fill_random(TensorView tensor, uint64_t seed, float scale, ThreadPool& pool) {
  const int64_t count = tensor.num_elements();
  if (tensor.dtype() == DType::kBF16) return fill(tensor.as<bf16>(), count, seed, scale, pool);
  fill(tensor.as<float>(), count, seed, scale, pool);
}

RandomTensor::RandomTensor(DType dtype, Shape shape, uint64_t seed, float scale, ThreadPool& pool)
    : memory_(std::max<int64_t>(1, shape.num_elements() * dtype_bytes(dtype))),
      view_(memory_.data(), dtype, shape) {
  fill_random(view_, seed, scale, pool);
}

int64_t ColdCopies::size_bytes(DType dtype, const Shape& shape, int64_t min_bytes) {
  const int64_t stride = copy_stride(dtype, shape);
  return round_up(std::max(min_bytes, stride), stride);
}

ColdCopies::ColdCopies(DType dtype, Shape shape, int64_t min_bytes, float scale, ThreadPool& pool,
                       uint64_t seed, Device& device)
    : dtype_(dtype),
      shape_(shape),
      copy_bytes_(copy_stride(dtype, shape)),
      num_copies_(size_bytes(dtype, shape, min_bytes) / copy_bytes_),
      memory_(device.allocate(num_copies_ * copy_bytes_)) {
  for (int64_t i = 0; i < num_copies_; ++i) {
    const uint64_t seed_of_copy = seed + static_cast<uint64_t>(i);
    if (copy(i).is_on_host()) {
      fill_random(copy(i), seed_of_copy, scale, pool);
    } else {
      tessera::copy(RandomTensor(dtype, shape, seed_of_copy, scale, pool).view(), copy(i));
    }
  }
}

TensorView ColdCopies::copy(int64_t index) const {
  return {memory_.address() + index * copy_bytes_, dtype_, shape_, memory_.device()};
}

int64_t ColdCopies::next_index() {
  const int64_t index = next_;
  next_ = (next_ + 1) % num_copies_;
  return index;
}

}  // namespace tessera
