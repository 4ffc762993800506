#include <cmath>

#include "kernels/activation_type.h"
#include "kernels/elementwise/elementwise_impl.h"

namespace tessera {
namespace {

void add_ref(TensorView x, ConstTensorView y, ThreadPool& /*pool*/) {
  with_activation_type(x.dtype(), [&]<typename A>(A) {
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      x.as<A>()[i] = from_float<A>(to_float(x.as<A>()[i]) + to_float(y.as<A>()[i]));
    }
  });
}

void scale_ref(ConstTensorView x, float factor, TensorView y, ThreadPool& /*pool*/) {
  with_activation_type(x.dtype(), [&]<typename A>(A) {
    for (int64_t i = 0; i < x.num_elements(); ++i)
      y.as<A>()[i] = from_float<A>(to_float(x.as<A>()[i]) * factor);
  });
}

void soft_cap_ref(TensorView x, float cap, ThreadPool& /*pool*/) {
  with_activation_type(x.dtype(), [&]<typename A>(A) {
    for (int64_t i = 0; i < x.num_elements(); ++i)
      x.as<A>()[i] = from_float<A>(static_cast<float>(cap * std::tanh(to_float(x.as<A>()[i]) / double{cap})));
  });
}

void soft_cap_backward_ref(ConstTensorView y, float cap, TensorView dx, ThreadPool& /*pool*/) {
  with_activation_type(dx.dtype(), [&]<typename A>(A) {
    for (int64_t i = 0; i < dx.num_elements(); ++i) {
      const double t = y.as<float>()[i] / double{cap};
      dx.as<A>()[i] = from_float<A>(static_cast<float>(to_float(dx.as<A>()[i]) * (1 - t * t)));
    }
  });
}

void round_to_ref(ConstTensorView from, TensorView to, ThreadPool& /*pool*/) {
  with_activation_type(to.dtype(), [&]<typename A>(A) {
    for (int64_t i = 0; i < to.num_elements(); ++i) to.as<A>()[i] = from_float<A>(from.as<float>()[i]);
  });
}

double sum_of_squares_ref(std::span<const float> x, std::span<std::byte> /*scratch*/, ThreadPool& /*pool*/) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace

std::vector<Implementation<ElementwiseKernels>> elementwise_ref() {
  return {{"ref",
           Isa::kRef,
           {.add = add_ref,
            .scale = scale_ref,
            .soft_cap = soft_cap_ref,
            .soft_cap_backward = soft_cap_backward_ref,
            .round_to = round_to_ref,
            .sum_of_squares = sum_of_squares_ref}}};
}

}  // namespace tessera
