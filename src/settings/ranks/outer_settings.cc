#include "settings/ranks/outer_settings.h"

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "settings/flag_limits.h"

namespace tessera {
namespace {

// What keeps nodes from training on their own; "" if nothing does.
std::string obstacle(const RunSpec& args) {
  if (args.machine.device != DeviceKind::kCpu) return fmt::format("device {}", args.machine.device);
  if (args.placement.optimizer_in_backward) return "optimizer_in_backward";
  if (args.placement.fit) return "fit";
  if (args.placement.optimizer_device != OffloadDevice::kNone)
    return fmt::format("offload_optimizer_device {}", args.placement.optimizer_device);
  if (args.placement.param_device != OffloadDevice::kNone)
    return fmt::format("offload_param_device {}", args.placement.param_device);
  if (args.saving.peer_snapshot_steps > 0)
    return fmt::format("peer_snapshot_steps {}", args.saving.peer_snapshot_steps);
  if (args.sharding.quantized_weights) return "zero_quantized_weights";
  if (args.sharding.load_once == LoadOnce::kPerCluster) return "load_weights_once per_cluster";
  if (args.sharding.gather_schedule == GatherChoice::kPerLayer) return "gather_schedule per_layer";
  return "";
}

}  // namespace

void declare_outer_flags(FlagTable* table, RunSpec* args) {
  limit(table->add("sync_every", &args->outer.sync_every,
                   "DiLoCo, for nodes that only ordinary links join: every node trains on its own part of "
                   "each batch, as a job of one node, and after so many steps an outer optimizer moves the "
                   "weights that all of them continue from by the mean of what they have learnt. Takes about "
                   "1/N of the bytes; the result is another one. 0: nodes take every step together."),
        {0, 1e9});
  limit(table->add("num_fragments", &args->outer.num_fragments,
                   "With sync_every, layers are exchanged in so many groups one after another, so that the "
                   "network is used evenly."),
        {1, 1e6});
  limit(table->add("fragment_sync_delay", &args->outer.sync_delay,
                   "With sync_every, the result of an exchange is used so many steps after its beginning, "
                   "which take place meanwhile. Less than sync_every / num_fragments."),
        {0, 1e9});
  limit(table->add("fragment_update_alpha", &args->outer.update_alpha,
                   "With sync_every, the share that a node's own weights have in what it continues with "
                   "after an exchange: 0.5 is usual with a delay."),
        {0, 1, false, true});
  limit(table->add("outer_learning_rate", &args->outer.learning_rate,
                   "Learning rate of the outer optimizer, SGD with Nesterov momentum."),
        {0, 10, true});
  limit(table->add("outer_momentum", &args->outer.momentum, "Momentum of the outer optimizer."),
        {0, 1, false, true});
}

void check_outer_arguments(const FlagTable& table, const RunSpec& args) {
  if (args.outer.sync_every == 0) {
    for (const char* name : {"num_fragments", "fragment_sync_delay", "fragment_update_alpha",
                             "outer_learning_rate", "outer_momentum"}) {
      if (table.is_set(name)) log_warning("{} has no effect: sync_every is 0", name);
    }
    return;
  }
  if (const std::string found = obstacle(args); !found.empty())
    fail(ExitCode::kBadConfig, "sync_every cannot be combined with {}", found);
  if (!is_elementwise(state_tensors_of(args.optimizer))) {
    fail(ExitCode::kBadConfig,
         "sync_every needs an optimizer that updates every element by itself, such as adamw_torch, found "
         "optim {}",
         args.optimizer.form);
  }
  if (args.outer.num_fragments > args.outer.sync_every) {
    fail(ExitCode::kBadConfig, "num_fragments {} is more than sync_every {}: each has a step of its own",
         args.outer.num_fragments, args.outer.sync_every);
  }
  if (args.outer.sync_delay * args.outer.num_fragments >= args.outer.sync_every) {
    fail(ExitCode::kBadConfig,
         "fragment_sync_delay {} must be less than sync_every {} / num_fragments {}: an exchange ends before "
         "the next one begins",
         args.outer.sync_delay, args.outer.sync_every, args.outer.num_fragments);
  }
}

std::optional<OuterSettings> outer_settings_of(const RunSpec& args) {
  return args.outer.sync_every > 0 ? std::optional(args.outer) : std::nullopt;
}

}  // namespace tessera
