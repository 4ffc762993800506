// Updates of flat arrays by optimizers that treat every element alike, in one pass over weights, gradients
// and moments. A rule says what happens to one element (adamw.h, lion.h); rules.h lists them.
//
// BF16 weights are one half of an exact float32 master weight, 16-bit remainders the other (master_weight(),
// base/float_types.h). A BF16 run with remainders is bit-equal to a float32 run. Every operation is rounded
// to float32, products and sums separately; subnormal values become zero (platform/subnormals.h).
//
// BF16 moments take half the memory. They are rounded stochastically: rounding to nearest would never let
// AdamW's v fall, whose change in a step, 1 - b2, is less than half a BF16 step. The random bits depend on
// the step and the element alone (kernels/rounding_bits.h), so a result depends neither on blocks nor on
// threads.
//
// 8-bit moments (kernels/block_code) take a quarter of it. The update itself is in float32; then the moments
// are rounded stochastically to codes, block by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/optimizer/update_rule.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// The format of the moments: float32, BF16, or codes of kernels/block_code.
enum class MomentForm { kF32, kBF16, kCodes };

constexpr DType moment_dtype(MomentForm form, const UpdateMoment& moment) {
  if (form == MomentForm::kCodes) return moment.is_square ? DType::kU8 : DType::kI8;
  return form == MomentForm::kBF16 ? DType::kBF16 : DType::kF32;
}

// Consecutive elements with all that belongs to them, each array from the first of the elements on. Arrays do
// not overlap. The first element begins a block of codes.
struct OptimizerBlock {
  TensorView weights;             // BF16 or F32 [count]
  int16_t* remainders = nullptr;  // of the master weights, with BF16 weights
  std::span<const float> gradient;
  std::span<std::byte* const> state;  // by tensor of the optimizer's list: the moments
  int64_t first_element = 0;          // of the block, among the elements of all parameters
  bool weight_decay = true;           // whether the scalars have it
};

// Defined for the rules of rules.h.
template <class Rule>
void update_elements(const OptimizerBlock& block, MomentForm form, const typename Rule::Scalars& scalars,
                     ThreadPool& pool);

// The float32 master weights of a block, element by element: of F32 weights ...
struct F32Masters {
  float* weight;

  float load(int64_t i) const { return weight[i]; }
  void store(int64_t i, float master) const { weight[i] = master; }
};

// ... or of BF16 ones with their remainders.
struct Bf16Masters {
  bf16* weight;
  int16_t* remainder;

  float load(int64_t i) const { return join_master(weight[i], remainder[i]); }
  void store(int64_t i, float master) const {
    weight[i] = master_weight(master);
    remainder[i] = master_remainder(master);
  }
};

// Calls body(masters).
template <typename Body>
void with_masters(const TensorView& weights, int16_t* remainders, const Body& body) {
  if (weights.dtype() == DType::kF32) {
    body(F32Masters{weights.as<float>()});
  } else {
    body(Bf16Masters{weights.as<bf16>(), remainders});
  }
}

}  // namespace tessera
