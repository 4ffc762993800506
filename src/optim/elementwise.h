// Optimizers that treat every element alike: a rule of kernels/optimizer and how its moments are kept.
#pragma once

#include <array>

#include "base/error.h"
#include "kernels/optimizer/element_update.h"
#include "kernels/optimizer/rules.h"
#include "optim/optimizer.h"

namespace tessera {

// By a rule, in whatever form its moments are.
template <class Rule>
class RuleOptimizer : public Optimizer {
 public:
  explicit RuleOptimizer(const OptimizerSpec& settings) : settings_(settings) {}

  // The factors of one update.
  typename Rule::Scalars scalars(bool weight_decay, const OptimizerStep& step) const {
    TESSERA_CHECK(step.step >= 1, "step {}", step.step);
    const AdamBetas betas = step.betas.value_or(AdamBetas{settings_.beta1, settings_.beta2});
    return Rule::scalars({.step = step.step,
                          .learning_rate = step.learning_rate,
                          .beta1 = betas.beta1,
                          .beta2 = betas.beta2,
                          .epsilon = settings_.epsilon,
                          .weight_decay = weight_decay ? settings_.weight_decay : 0,
                          .gradient_scale = step.gradient_scale});
  }

 protected:
  OptimizerSpec settings_;
};

template <class Rule, MomentForm kForm = MomentForm::kF32>
class Elementwise : public RuleOptimizer<Rule> {
 public:
  using RuleOptimizer<Rule>::RuleOptimizer;

  StateTensors state_tensors() const override { return kStateTensors; }
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override {
    update_elements<Rule>(block, kForm, this->scalars(block.weight_decay, step), pool);
  }

  static constexpr auto kStateTensors = [] {
    std::array<StateTensor, Rule::kMoments.size()> tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = {Rule::kMoments[i].name, moment_dtype(kForm, Rule::kMoments[i])};
    }
    return tensors;
  }();
};

// Only rules that other code refers to need a name here.
using AdamW = Elementwise<AdamWRule>;
// 8 bytes per parameter with BF16 weights instead of 12; 6.1 with moments in 8-bit codes.
using AdamWHalf = Elementwise<AdamWRule, MomentForm::kBF16>;
using AdamW8Bit = Elementwise<AdamWRule, MomentForm::kCodes>;
using Lion = Elementwise<LionRule>;

// Whether a card has this form of the state, with weights of this dtype.
inline bool is_on_cards(StateTensors tensors, DType weight_dtype) {
  return tensors.data() == AdamW::kStateTensors.data() ||
         (tensors.data() == AdamWHalf::kStateTensors.data() && weight_dtype == DType::kBF16);
}

}  // namespace tessera
