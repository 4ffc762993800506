// AdamW with decoupled weight decay. Loshchilov and Hutter, 2019; formulas as in torch.optim.AdamW.
#pragma once

#include "optim/optimizer.h"

namespace tessera {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerSettings& settings) : settings_(settings) {}

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override;

  static constexpr StateTensor kStateTensors[] = {{"exp_avg"}, {"exp_avg_sq"}};

 private:
  OptimizerSettings settings_;
};

}  // namespace tessera
