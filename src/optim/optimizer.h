// An optimizer: how elements are updated from their gradients, and which state that takes. The state itself
// is an OptimizerState's (optim/optimizer_state.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/choice.h"
#include "kernels/optimizer/element_update.h"
#include "optim/schedule.h"
#include "optim/state_tensor.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// An optimizer and the type of its state.
enum class OptimizerForm { kAdamW, kAdamWHalf, kAdamW8Bit, kLion, kLion8Bit, kMuon, kAdafactor };
// Names of Hugging Face's Trainer, DeepSpeed and bitsandbytes. A paged optimizer moves its state between the
// memories of GPU and CPU and computes the same; here there is one memory.
constexpr auto choice_words(OptimizerForm) {
  using enum OptimizerForm;
  return std::to_array<Word<OptimizerForm>>({{"adamw_torch", kAdamW},
                                             {"adamw_torch_fused", kAdamW},
                                             {"adamw_hf", kAdamW},
                                             {"adamw", kAdamW},
                                             {"adamw_32bit", kAdamW},
                                             {"paged_adamw", kAdamW},
                                             {"paged_adamw_32bit", kAdamW},
                                             {"adamw_bf16", kAdamWHalf},
                                             {"adamw_8bit", kAdamW8Bit},
                                             {"adamw_bnb_8bit", kAdamW8Bit},
                                             {"adamw_torch_8bit", kAdamW8Bit},
                                             {"paged_adamw_8bit", kAdamW8Bit},
                                             {"lion_32bit", kLion},
                                             {"lion", kLion},
                                             {"paged_lion", kLion},
                                             {"paged_lion_32bit", kLion},
                                             {"lion_8bit", kLion8Bit},
                                             {"paged_lion_8bit", kLion8Bit},
                                             {"muon", kMuon},
                                             {"adafactor", kAdafactor}});
}

// Forms of one kind differ only in what they round.
enum class OptimizerKind { kAdamW, kLion, kMuon, kAdafactor };
OptimizerKind optimizer_kind(OptimizerForm form);

// Muon's rate for a matrix [rows, columns], derived from the learning rate: torch.optim.Muon's
// adjust_lr_fn.
enum class MuonRate {
  kOriginal,       // times sqrt(max(1, rows / columns)). Jordan, 2024
  kMatchRmsAdamw,  // times 0.2 sqrt(max(rows, columns)), as large as an update of AdamW. Liu et al., 2025
};
constexpr auto choice_words(MuonRate) {
  using enum MuonRate;
  return std::to_array<Word<MuonRate>>({{"original", kOriginal}, {"match_rms_adamw", kMatchRmsAdamw}});
}

// The settings of all optimizers; each uses what applies to it.
struct OptimizerSpec {
  OptimizerForm form = OptimizerForm::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool weight_decay_norms = false;
  double muon_momentum = 0.95;
  MuonRate muon_rate = MuonRate::kMatchRmsAdamw;
};

// The inputs of one update that all elements share.
struct OptimizerStep {
  int64_t step;  // updates so far, this one included: from 1
  double learning_rate;
  double gradient_scale = 1;            // every gradient is multiplied by it
  std::optional<AdamBetas> betas = {};  // from the schedule; if unset, the settings' betas
};

// A parameter that is updated as a whole: its state must be in memory.
struct WholeParameter {
  ConstTensorView gradient;  // F32 or BF16 [count]
  ParameterShape shape;
  DType weight_dtype;
  bool weight_decay = true;
  std::span<std::byte* const> state;  // by tensor of the list, of those by rows or columns or of vectors
  std::span<std::byte> workspace;     // at least workspace_bytes()
};

// Calls body(gradient) with its gradients from an element on, as const float* or const bf16*.
template <typename Body>
void with_gradient(const WholeParameter& parameter, int64_t begin, const Body& body) {
  if (parameter.gradient.dtype() == DType::kF32) {
    body(parameter.gradient.as<float>() + begin);
  } else {
    body(parameter.gradient.as<bf16>() + begin);
  }
}

// Elements [begin, begin + count) of it, each array from the first of them on.
struct WholeBlock {
  int64_t begin = 0;
  int64_t count = 0;
  std::span<std::byte* const> state;  // of the other tensors: for update_moments()
  TensorView weights = {};            // BF16 or F32 [count], with remainders as in OptimizerBlock: for
  int16_t* remainders = nullptr;      // update_masters()
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual StateTensors state_tensors() const = 0;
  // Updates weights, master remainders and state of the block with the pool's threads. The result does not
  // depend on how elements are divided into blocks (at multiples of state_block() elements of a parameter) or
  // on the number of threads. Does not allocate.
  virtual void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const = 0;

  // Updates a parameter that cannot be cut (is_indivisible()), in three parts with one workspace: its element
  // moments, in blocks; the part that needs the whole parameter; and the masters of its elements, in blocks.
  // The result depends neither on the blocks nor on the number of threads.
  virtual void update_moments(const WholeParameter& /*parameter*/, const WholeBlock& /*block*/,
                              const OptimizerStep& /*step*/, ThreadPool& /*pool*/) const {}
  virtual void solve(const WholeParameter& parameter, const OptimizerStep& step, ThreadPool& pool) const;
  virtual void update_masters(const WholeParameter& parameter, const WholeBlock& block,
                              const OptimizerStep& step, ThreadPool& pool) const;
  virtual int64_t workspace_bytes(const ParameterShape& /*shape*/, DType /*weight_dtype*/,
                                  int64_t /*num_threads*/) const {
    return 0;
  }
};

std::unique_ptr<const Optimizer> make_optimizer(const OptimizerSpec& spec);
// Its list of state tensors, for plans.
StateTensors state_tensors_of(const OptimizerSpec& spec);

}  // namespace tessera
