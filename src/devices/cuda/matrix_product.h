// The products of linear layers by cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "devices/cuda/cuda_stream.h"
#include "kernels/update.h"
#include "tensor/tensor_view.h"

namespace tessera::cuda {

// Multiplies row-major matrices with float32 sums; elements are BF16 or float32 (without TF32). The same call
// always takes the same algorithm, and none adds in a nondeterministic order; results are rounded once.
class MatrixProducts {
 public:
  MatrixProducts();
  ~MatrixProducts();
  MatrixProducts(const MatrixProducts&) = delete;
  MatrixProducts& operator=(const MatrixProducts&) = delete;

  // c [m, n] = or += op(a) op(b), where op transposes or not: a is [m, k] or [k, m], b is [k, n] or [n, k]. c
  // may be float32 where a and b are BF16. bias [n] (may be empty; then kOverwrite, in the dtype of c) is
  // added to every row. The workspace has kProductWorkspaceBytes (scratch.h).
  void multiply(ConstTensorView a, bool transpose_a, ConstTensorView b, bool transpose_b,
                ConstTensorView bias, TensorView c, Update update, std::span<std::byte> workspace,
                CudaStream stream);

  std::string version() const;  // "13.1"

 private:
  struct Shape {
    int64_t m, n, k;
    bool transpose_a, transpose_b, has_bias, adds;
    DType inputs, output;
    int alignment;  // of the addresses, as a power of two of at most 16
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;

  Plan& plan_for(const Shape& shape);

  void* handle_ = nullptr;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace tessera::cuda
