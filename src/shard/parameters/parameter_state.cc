#include "shard/parameters/parameter_state.h"

#include <utility>

#include "shard/parameters/device_parameters.h"
#include "shard/parameters/diloco_parameters.h"
#include "shard/parameters/offloaded_parameters.h"
#include "shard/parameters/parameter_ranges.h"
#include "shard/parameters/sharded_parameters.h"
#include "shard/parameters/streamed_parameters.h"
#include "shard/parameters/whole_parameters.h"

namespace tessera {

std::unique_ptr<ParameterState> make_parameter_state(TrainableModel& model, const ZeroSettings& settings,
                                                     std::unique_ptr<const Optimizer> optimizer,
                                                     bool decay_all, Communicator& comm, ThreadPool& pool) {
  if (settings.outer) {
    return std::make_unique<DilocoParameters>(model, settings, std::move(optimizer), decay_all, comm, pool);
  }
  if (model.device().own_memory() && !settings.optimizer_on_host)
    return std::make_unique<DeviceParameters>(model, std::move(optimizer), decay_all, pool);
  if (model.device().own_memory() && !settings.parameters_on_host)
    return std::make_unique<OffloadedParameters>(model, std::move(optimizer), decay_all, pool);
  if (comm.world().is_single() && settings.optimizer_in_backward)
    return std::make_unique<StreamedParameters>(model, settings, std::move(optimizer), decay_all, pool,
                                                state_file(settings, 0));
  if (comm.world().is_single() && !settings.parameters_on_host)
    return std::make_unique<WholeParameters>(model, std::move(optimizer), decay_all, pool,
                                             state_file(settings, 0));
  return std::make_unique<ShardedParameters>(model, settings, std::move(optimizer), decay_all, comm, pool);
}

}  // namespace tessera
