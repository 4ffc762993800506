// Sums of what members of a group contribute where it does not travel as the values that are added: blocks of
// codes with their errors (kernels/quantized_weight/gradient_blocks.h), and bf16 to be rounded to bf16 again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/float_types.h"
#include "kernels/quantized_weight/gradient_blocks.h"

namespace tessera {

// The errors of a reduce_scatter in blocks, one for each element of its buffer.
struct GradientFeedback {
  bf16* errors = nullptr;
  // Errors are sent along, but not replaced by new ones: the sums are thrown away.
  bool keeps_errors = false;
  // The errors of the member's own part, which it adds without rounding and never changes. The caller keeps
  // track of whether they have been added already.
  bool adds_own_errors = false;
};

// A member's contribution to a chunk; nullptr for the member that adds.
using ContributionOf = std::function<const std::byte*(int member)>;

// own = the sum over the members, in their order and in float32; own_errors, where given, are added to `own`
// first. On the calling thread; needs no memory but the stack.
void sum_gradient_blocks(GradientCode code, int num_members, const ContributionOf& blocks,
                         const bf16* own_errors, float* own, int64_t count);
// Sums bf16 values, rounding once.
void sum_bf16(int num_members, const ContributionOf& values, bf16* own, int64_t count);

}  // namespace tessera
