// Lion, which keeps one moment and moves every weight by the learning rate. Chen et al., 2023. Its rate is
// three to ten times lower than AdamW's, its weight decay as much higher.
#pragma once

#include "kernels/lion/lion.h"
#include "optim/optimizer.h"

namespace tessera {

class Lion : public Optimizer {
 public:
  explicit Lion(const OptimizerSpec& settings) : settings_(settings) {}

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override;

  static constexpr StateTensor kStateTensors[] = {{"exp_avg"}};

 protected:
  LionScalars scalars(const OptimizerBlock& block, const OptimizerStep& step) const;

 private:
  OptimizerSpec settings_;
};

// With its moment in 8-bit codes (kernels/block_code).
class Lion8Bit : public Lion {
 public:
  using Lion::Lion;

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override;

  static constexpr StateTensor kStateTensors[] = {{"exp_avg", DType::kI8}};
};

}  // namespace tessera
