#include "cli/run/rank.h"

#include <filesystem>
#include <memory>
#include <string_view>

#include "base/log.h"
#include "io/absolute_path.h"
#include "launch/reports/crash_handler.h"

namespace tessera {

std::optional<World> launched_world() {
  constexpr std::string_view kByHand = "RANK and WORLD_SIZE";  // detect_world()'s name for it
  try {
    World world = detect_world();
    if (!world.is_single() && world.source != kByHand) return world;
  } catch (const Error&) {
    // A command that needs them will report it.
  }
  return std::nullopt;
}

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
  } catch (const std::filesystem::filesystem_error& failure) {
    const Error error = error_from(failure);
    comm->report_failure(error);
    throw error;
  }
}

}  // namespace tessera
