#include "train/first_failure.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace tessera {
namespace {

// As it crosses the network.
struct ErrorText {
  int32_t code = 0;
  int32_t size = 0;
  std::array<char, 1000> text = {};
};

}  // namespace

std::optional<RankError> first_error(Communicator& comm, const std::optional<Error>& own,
                                     const OpLabel& label) {
  const World& world = comm.world();
  std::vector<double> has_error(static_cast<size_t>(world.world_size));
  has_error[static_cast<size_t>(world.rank)] = own ? 1 : 0;
  comm.all_reduce_sum(has_error, label);
  const auto first = std::find_if(has_error.begin(), has_error.end(), [](double flag) { return flag > 0; });
  if (first == has_error.end()) return std::nullopt;

  const int rank = static_cast<int>(first - has_error.begin());
  ErrorText told;
  if (rank == world.rank) {
    const std::string message = own->what();
    told.code = static_cast<int32_t>(own->code());
    told.size = static_cast<int32_t>(std::min(message.size(), told.text.size()));
    std::memcpy(told.text.data(), message.data(), static_cast<size_t>(told.size));
  }
  comm.broadcast(std::as_writable_bytes(std::span(&told, 1)), rank, label);
  const std::string message(told.text.data(), static_cast<size_t>(told.size));
  return RankError{rank, static_cast<ExitCode>(told.code),
                   world.is_single() ? message : fmt::format("rank {}: {}", rank, message)};
}

}  // namespace tessera
