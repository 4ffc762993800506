#include "train/setup/run_setup.h"

#include "train/setup/run_loading.h"
#include "train/setup/run_planning.h"

namespace tessera {

RunSetup::RunSetup(const RunSpec& resolved, ThreadPool& thread_pool, TrainObserver& observer,
                   Communicator& communicator, const OpsFactory& make)
    : RunInputs(resolved, thread_pool, observer, communicator, make), form(form_of_run(*this)) {
  make_plan(*this);
  load_run(*this);
}

}  // namespace tessera
