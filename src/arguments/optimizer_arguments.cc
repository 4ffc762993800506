#include "arguments/optimizer_arguments.h"

namespace tessera {

std::unique_ptr<const Optimizer> make_optimizer(const TrainingArguments& args) {
  return make_optimizer(args.optim, {args.adam_beta1, args.adam_beta2, args.adam_epsilon, args.weight_decay});
}

StateTensors state_tensors_of(const TrainingArguments& args) { return make_optimizer(args)->state_tensors(); }

}  // namespace tessera
