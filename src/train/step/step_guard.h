// Guards look at every step before its update, and skip the update or end the run if something is wrong with
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "data/rows/batch_plan.h"
#include "model/trainable_model.h"
#include "report/observer.h"
#include "report/progress.h"
#include "settings/run_settings.h"
#include "shard/parameter_store.h"
#include "train/step/step_runner.h"

namespace tessera {

// A step whose gradients are complete and whose weights are still the old ones.
struct CheckedStep {
  StepMetrics* metrics;             // step, loss and gradient norm are set
  std::span<const StepPart> parts;  // by rank
  const RowLists* passes;
  const std::string* replay_difference;  // of this rank, "" = none
};

struct GuardVerdict {
  enum class Action { kUpdate, kSkip, kStop };
  Action action = Action::kUpdate;
  std::string reason = {};  // of kStop: the message that ends the run
};

class StepGuard {
 public:
  virtual ~StepGuard() = default;
  // Collective; the same verdict on all ranks.
  virtual GuardVerdict check(const CheckedStep& step) = 0;
  // The history of a guard is part of the run's progress.
  virtual void save(Progress* /*progress*/) const {}
  virtual void restore(const Progress& /*progress*/) {}
};

// Guards in the order in which they are asked; the first verdict other than kUpdate counts. Arguments passed
// by reference must outlive them.
std::vector<std::unique_ptr<StepGuard>> make_step_guards(const GuardSpec& spec, TrainableModel& model,
                                                         const Dataset& dataset, ParameterStore& parameters,
                                                         Communicator& comm, ContextRank* context);

}  // namespace tessera
