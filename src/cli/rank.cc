#include "cli/rank.h"

#include <memory>

#include "base/log.h"
#include "launch/reports/crash_handler.h"

namespace tessera {

void run_as_rank(const World& world, const CommOptions& options,
                 const std::function<void(Communicator& comm)>& body) {
  if (world.rank > 0) set_log_level(LogLevel::kError);
  if (!world.is_single()) set_crash_rank(world.rank);
  const std::unique_ptr<Communicator> comm = Communicator::open(world, options);
  try {
    body(*comm);
    comm->leave();
  } catch (const Error& error) {
    comm->report_failure(error);
    throw;
  }
}

}  // namespace tessera
