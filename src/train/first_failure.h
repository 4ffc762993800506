// An error of one rank that all of them go on from together.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"

namespace tessera {

struct RankError {
  int rank;
  ExitCode code;
  std::string message;  // names the rank where there are several; cut after kMaxTextBytes
};

// Collective: that of the first rank that has one, on all ranks; nothing when `own` is nothing everywhere.
std::optional<RankError> first_error(Communicator& comm, const std::optional<Error>& own,
                                     const OpLabel& label);

// An error of the outside world (kIoError, kBadData, kNoInput) that action() throws; others pass.
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
