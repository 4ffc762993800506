// SGD with momentum kept in BF16: an optimizer whose state is not AdamW's.
#pragma once

#include "base/float_types.h"
#include "optim/optimizer.h"

namespace tessera {

class MomentumSgd : public Optimizer {
 public:
  explicit MomentumSgd(const OptimizerSpec& settings = {}) : momentum_(settings.beta1) {}

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override {
    auto* momentum = reinterpret_cast<bf16*>(block.state[0]);
    pool.parallel_for(std::ssize(block.gradient), [&](int64_t i) {
      const double gradient = block.gradient[static_cast<size_t>(i)] * step.gradient_scale;
      momentum[i] =
          to_bf16(static_cast<float>(momentum_ * static_cast<double>(to_float(momentum[i])) + gradient));
      const auto change = static_cast<float>(step.learning_rate * static_cast<double>(to_float(momentum[i])));
      if (block.weights.dtype() == DType::kF32) {
        block.weights.as<float>()[i] -= change;
        return;
      }
      bf16& weight = block.weights.as<bf16>()[i];
      const float master = join_master(weight, block.remainders[i]) - change;
      weight = master_weight(master);
      block.remainders[i] = master_remainder(master);
    });
  }

  static constexpr StateTensor kStateTensors[] = {{"momentum_buffer", DType::kBF16}};

 private:
  double momentum_;
};

}  // namespace tessera
