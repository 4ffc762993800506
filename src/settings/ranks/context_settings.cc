#include "settings/ranks/context_settings.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "settings/flag_limits.h"

namespace tessera {

void declare_context_flags(FlagTable* table, RunSpec* args) {
  limit(table->add(
            "context_parallel_size", &args->sharding.context_parallel_size,
            "For rows whose activations do not fit on one rank: this many consecutive ranks share the tokens "
            "of each row, and divide its attention by heads. A divisor of the model's key-value heads, or a "
            "multiple of them that divides its query heads. Batch sizes are then per team of ranks. The "
            "result is the same, except for the order in which gradients are added up and rounded."),
        {1, 1e6});
}

void check_context_ranks(const RunSpec& args, int64_t world_size) {
  const int64_t size = args.sharding.context_parallel_size;
  if (world_size % size == 0) return;
  fail(ExitCode::kBadConfig, "context_parallel_size {}: expected a divisor of the number of ranks, found {}",
       size, count_of(world_size, "rank"));
}

void check_context_arguments(const RunSpec& args) {
  const int64_t size = args.sharding.context_parallel_size;
  if (size == 1) return;
  const auto refuse = [&](bool found, const std::string& what) {
    if (found) fail(ExitCode::kBadConfig, "context_parallel_size {} cannot be combined with {}", size, what);
  };
  refuse(args.machine.device != DeviceKind::kCpu, fmt::format("device {}", args.machine.device));
  refuse(args.outer.sync_every > 0, fmt::format("sync_every {}", args.outer.sync_every));
}

int64_t num_row_ranks(const RunSpec& args, int64_t world_size) {
  return std::max<int64_t>(1, world_size / args.sharding.context_parallel_size);
}

}  // namespace tessera
