// AdamW with decoupled weight decay. Loshchilov and Hutter, 2019; formulas as in torch.optim.AdamW.
#pragma once

#include <iterator>

#include "kernels/adamw/adamw.h"
#include "optim/optimizer.h"

namespace tessera {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerSpec& settings) : settings_(settings) {}

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override;

  // The factors of one update.
  AdamWScalars scalars(bool weight_decay, const OptimizerStep& step) const;

  static constexpr StateTensor kStateTensors[] = {{"exp_avg"}, {"exp_avg_sq"}};

 private:
  OptimizerSpec settings_;
};

// With moments in BF16, stochastically rounded: 8 bytes per parameter with BF16 weights instead of 12.
class AdamWHalf : public AdamW {
 public:
  using AdamW::AdamW;

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override;

  static constexpr StateTensor kStateTensors[] = {{"exp_avg", DType::kBF16}, {"exp_avg_sq", DType::kBF16}};
};

// With moments in 8-bit codes (kernels/block_code): 6.1 bytes per parameter with BF16 weights.
class AdamW8Bit : public AdamW {
 public:
  using AdamW::AdamW;

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override;

  static constexpr StateTensor kStateTensors[] = {{"exp_avg", DType::kI8}, {"exp_avg_sq", DType::kU8}};
};

// Whether a card has this form of the state, with weights of this dtype.
inline bool is_on_cards(StateTensors tensors, DType weight_dtype) {
  return tensors.data() == std::data(AdamW::kStateTensors) ||
         (tensors.data() == std::data(AdamWHalf::kStateTensors) && weight_dtype == DType::kBF16);
}

}  // namespace tessera
