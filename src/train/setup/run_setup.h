// The parts of a run: opened, planned, checked against the memory and disks of its nodes, and loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "context/expert_rail.h"
#include "shard/parameter_store.h"
#include "shard/weights/frozen_weights.h"
#include "train/setup/form_choice.h"
#include "train/setup/run_inputs.h"

namespace tessera {

struct RunSetup : RunInputs {
  // Collective: after the inputs it chooses the form of the run, plans (run_planning.h) and loads
  // (run_loading.h). Parameters as the Trainer's.
  RunSetup(const RunSpec& resolved, ThreadPool& thread_pool, TrainObserver& observer,
           Communicator& communicator, const OpsFactory& make);

  const RunForm form;
  RunSpec& spec = form.spec;
  std::optional<FrozenWeights> frozen;  // with adapters
  std::optional<ExpertRail> experts;    // if they are divided among nodes
  std::unique_ptr<ParameterStore> parameters;
  int64_t loading_peak_bytes = 0;  // resident, of this rank
};

}  // namespace tessera
