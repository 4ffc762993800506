#include "train/first_failure.h"

#include <array>
#include <cstdint>

namespace tessera {

std::optional<RankError> first_error(Communicator& comm, const std::optional<Error>& own,
                                     const OpLabel& label) {
  if (comm.world().is_single()) {
    if (!own) return std::nullopt;
    return RankError{0, own->code(), own->what()};
  }
  std::array<double, 1> code = {own ? static_cast<double>(own->code()) : 0.0};  // none is 0
  comm.all_reduce_sum(code, label);
  if (code[0] == 0) return std::nullopt;
  int rank = 0;
  while (comm.summand(rank, 0) == 0) ++rank;
  const auto first_code = static_cast<ExitCode>(static_cast<int>(comm.summand(rank, 0)));
  const std::string message = comm.broadcast_text(own ? own->what() : "", rank, label);
  return RankError{rank, first_code, fmt::format("rank {}: {}", rank, message)};
}

}  // namespace tessera
