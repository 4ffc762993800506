// The inputs that the time of one operation call depends on: its name and sizes. A walk over a step
// (step_walk.h) gives a list of these, OpCosts (op_costs.h) give each a number of seconds.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>

#include "kernels/quantized_weight/quantized_form.h"
#include "ops/forwarding_ops.h"
#include "tensor/dtype.h"

namespace tessera {

enum class WorkKind {
  kProduct,      // linear and its backward
  kAttention,    //
  kElementwise,  // norms, rotation, SwiGLU, embedding, loss, sums: what moves bytes
  kPacking,      // of weights for the products, after an update
};

// Two calls with equal work take the same time.
struct OpWork {
  std::string_view name;  // "linear_backward_weight": static storage
  WorkKind kind = WorkKind::kElementwise;
  DType dtype = DType::kBF16;        // of the first operand
  DType result_dtype = DType::kF32;  // of the first result
  // linear...: T, N, K. Attention: T, H, G, E. Others: rows and width of the widest operand.
  std::array<int64_t, 4> sizes = {};
  double pairs = 0;      // attention: of a query and a key that it sees, in one head
  bool adds = false;     // to its result, rather than overwriting it
  bool squares = false;  // also sums the squares of its result
  double bytes = 0;      // that it reads and writes at least once
  bool packed = false;   // the weight's packed form is kept
  Quantization quantization = Quantization::kNone;  // of the weight

  auto operator<=>(const OpWork&) const = default;

  // Counted as in model/flops.h: 2 T N K for a product, 4 E per pair and head forward, twice that backward.
  double flop() const;
};

OpWork work_of(const OpCall& call);

}  // namespace tessera
