#include "comm/first_failure.h"

#include <algorithm>
#include <vector>

namespace tessera {

std::optional<RankError> first_error(Communicator& comm, const std::optional<Error>& own,
                                     const OpLabel& label) {
  if (comm.world().is_single()) {
    if (!own) return std::nullopt;
    return RankError{0, own->code(), own->what()};
  }
  const std::vector<ExitCode> codes = comm.all_gather(own ? own->code() : ExitCode::kDone, label);
  const auto first = std::ranges::find_if(codes, [](ExitCode code) { return code != ExitCode::kDone; });
  if (first == codes.end()) return std::nullopt;
  const auto rank = static_cast<int>(first - codes.begin());
  const std::string message = comm.broadcast_text(own ? own->what() : "", rank, label);
  return RankError{rank, *first, fmt::format("rank {}: {}", rank, message)};
}

}  // namespace tessera
