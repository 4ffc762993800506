#include "kernels/elementwise/elementwise.h"

#include <cstring>

#include "base/divide_up.h"
#include "kernels/elementwise/elementwise_impl.h"

namespace tessera {

const DispatchTable<ElementwiseKernels>& elementwise_table() {
  static const DispatchTable<ElementwiseKernels> table("elementwise",
                                                       concat(elementwise_hwy(), elementwise_ref()));
  return table;
}

void add(TensorView x, ConstTensorView y, ThreadPool& pool) {
  TESSERA_CHECK(x.dtype() == y.dtype() && x.num_elements() == y.num_elements(), "{} {} += {} {}",
                dtype_name(x.dtype()), x.shape().to_string(), dtype_name(y.dtype()), y.shape().to_string());
  elementwise_table().chosen().add(x, y, pool);
}

void scale(ConstTensorView x, float factor, TensorView y, ThreadPool& pool) {
  TESSERA_CHECK(x.dtype() == y.dtype() && x.num_elements() == y.num_elements(), "{} {} to {} {}",
                dtype_name(x.dtype()), x.shape().to_string(), dtype_name(y.dtype()), y.shape().to_string());
  elementwise_table().chosen().scale(x, factor, y, pool);
}

void soft_cap(TensorView x, float cap, ThreadPool& pool) {
  TESSERA_CHECK(cap > 0, "soft cap {}", cap);
  elementwise_table().chosen().soft_cap(x, cap, pool);
}

void soft_cap_backward(ConstTensorView y, float cap, TensorView dx, ThreadPool& pool) {
  TESSERA_CHECK(cap > 0 && y.dtype() == DType::kF32 && y.num_elements() == dx.num_elements(),
                "soft cap {} of {} {}, gradient {}", cap, dtype_name(y.dtype()), y.shape().to_string(),
                dx.shape().to_string());
  elementwise_table().chosen().soft_cap_backward(y, cap, dx, pool);
}

void round_to(ConstTensorView from, TensorView to, ThreadPool& pool) {
  TESSERA_CHECK(from.dtype() == DType::kF32 && from.num_elements() == to.num_elements(), "{} {} to {} {}",
                dtype_name(from.dtype()), from.shape().to_string(), dtype_name(to.dtype()),
                to.shape().to_string());
  elementwise_table().chosen().round_to(from, to, pool);
}

void zero(TensorView x, ThreadPool& pool) {
  constexpr int64_t kBlockBytes = int64_t{1} << 20;  // some 20 us at a processor's share of bandwidth
  pool.parallel_blocks(x.size_bytes(), kBlockBytes, [&](int64_t begin, int64_t end) {
    std::memset(x.bytes() + begin, 0, static_cast<size_t>(end - begin));
  });
}

int64_t sum_of_squares_scratch_bytes(int64_t count) {
  return divide_up(count, kSumOfSquaresBlock) * static_cast<int64_t>(sizeof(double));
}

double sum_of_squares(std::span<const float> x, std::span<std::byte> scratch, ThreadPool& pool) {
  TESSERA_CHECK(std::ssize(scratch) >= sum_of_squares_scratch_bytes(std::ssize(x)),
                "{} bytes for {} elements", scratch.size(), x.size());
  return elementwise_table().chosen().sum_of_squares(x, scratch, pool);
}

}  // namespace tessera
