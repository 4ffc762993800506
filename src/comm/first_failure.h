// An error on one rank that all ranks handle together.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"

namespace tessera {

struct RankError {
  int rank;
  ExitCode code;
  std::string message;  // names the rank if there are several; cut after kMaxTextBytes
};

// Collective: returns the error of the lowest rank that has one, on all ranks; nullopt if `own` is nullopt
// everywhere.
std::optional<RankError> first_error(Communicator& comm, const std::optional<Error>& own,
                                     const OpLabel& label);

// Returns an environment error (kIoError, kBadData, kNoInput) thrown by action(); other errors propagate.
template <typename Action>
std::optional<Error> outside_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    const bool of_outside = error.code() == ExitCode::kIoError || error.code() == ExitCode::kBadData ||
                            error.code() == ExitCode::kNoInput;
    if (!of_outside) throw;
    return error;
  }
  return std::nullopt;
}

}  // namespace tessera
