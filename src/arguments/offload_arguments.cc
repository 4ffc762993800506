#include "arguments/offload_arguments.h"

#include <filesystem>

#include "arguments/flag_limits.h"
#include "base/error.h"
#include "io/async_file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxBlockBytes = int64_t{1} << 30;
constexpr int64_t kMaxQueueDepth = 4096;

}  // namespace

void declare_offload_flags(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Training in little memory");
  table->add_choice(
      "offload_optimizer_device", &args->offload_optimizer_device, {"none", "cpu", "nvme"},
      "Where the optimizer's state and the remainders of the master weights are: none and cpu mean memory; "
      "nvme means a file per rank in offload_dir, on any local disk, from which they are streamed during the "
      "update. The result is the same.");
  table->add_choice(
      "offload_param_device", &args->offload_param_device, {"none", "cpu", "nvme"},
      "Where the weights of decoder layers are kept: in memory (none, cpu) or in a file in offload_dir "
      "(nvme). With nvme, memory holds embedding, head, the layer in use and its neighbours; the next layer "
      "is read, and the last one written back, while this one is computed. Requires optimizer_in_backward "
      "and a single rank. The result is the same.");
  Flag& folder =
      table->add("offload_dir", &args->offload_dir,
                 "Folder for what is kept on a disk; a fast local one. Its files have no names while they "
                 "are used (lsof +L1 lists them) and are gone when the run ends, however it ends. Defaults "
                 "to offload in output_dir.");
  folder.value_name = "DIR";
  folder.aliases = {"offload_optimizer_nvme_path", "offload_param_nvme_path"};
  limit(table->add("aio_block_size", &args->aio_block_size,
                   "Bytes of a transfer between memory and offload_dir, a multiple of 4096."),
        {static_cast<double>(kDirectAlignment), static_cast<double>(kMaxBlockBytes)});
  limit(table->add("aio_queue_depth", &args->aio_queue_depth,
                   "Transfers between memory and offload_dir that a rank has in flight."),
        {1, static_cast<double>(kMaxQueueDepth)});
}

void resolve_offload(const FlagTable& table, int64_t world_size, TrainingArguments* args) {
  if (args->aio_block_size % kDirectAlignment != 0) {
    fail(ExitCode::kBadConfig, "aio_block_size: expected a multiple of {}, found {}", kDirectAlignment,
         args->aio_block_size);
  }
  const bool offloads_inputs = args->gradient_checkpointing && args->gradient_checkpointing_mode == "offload";
  const bool has_weights = args->offload_param_device == "nvme";
  if (has_weights && !args->optimizer_in_backward) {
    fail(ExitCode::kBadConfig,
         "offload_param_device nvme needs optimizer_in_backward: otherwise the update after the passes reads "
         "and writes all weights once more");
  }
  if (has_weights && world_size > 1) {
    fail(ExitCode::kBadConfig,
         "offload_param_device nvme needs one rank, found {}: zero_stage 3 with gather_schedule per_layer "
         "divides weights among nodes",
         world_size);
  }
  if (has_weights && args->pack_weights == "always") {
    fail(ExitCode::kBadConfig,
         "pack_weights always contradicts offload_param_device nvme: packed weights stay in memory");
  }
  if (args->offload_optimizer_device != "nvme" && !has_weights && !offloads_inputs) {
    for (const char* name : {"offload_dir", "aio_block_size", "aio_queue_depth"}) {
      if (table.is_set(name)) log_warning("{} has no effect: nothing is kept on a disk", name);
    }
    args->offload_dir.clear();
  } else if (args->offload_dir.empty()) {
    args->offload_dir = (std::filesystem::path(args->output_dir) / "offload").string();
  }
}

}  // namespace tessera
