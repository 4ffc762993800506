#include "settings/state/offload_settings.h"

#include <filesystem>

#include "base/error.h"
#include "settings/flag_limits.h"

namespace tessera {
namespace {

constexpr int64_t kMaxBlockBytes = int64_t{1} << 30;
constexpr int64_t kMaxQueueDepth = 4096;

}  // namespace

void declare_offload_flags(FlagTable* table, RunSpec* args) {
  table->begin_section("Training in little memory");
  table->add("gradient_checkpointing", &args->placement.gradient_checkpointing,
             "Keep only each layer's input and recompute the layer in the backward pass: much less memory "
             "for about a third more time, with the same result.");
  table->add_choice(
      "gradient_checkpointing_mode", &args->placement.checkpointing_mode,
      "What gradient_checkpointing keeps in memory, with the same result. full keeps the layers' inputs; "
      "selective also fills free memory with the outputs whose recomputation takes the most time per byte; "
      "offload keeps three inputs, the others wait for the backward pass in a scratch file in offload_dir.");
  table->add_choice(
      "merge_micro_batches", &args->placement.merge_micro_batches,
      "Run the micro-batches of a step through the model together, which is faster: every weight is read and "
      "every gradient updated once for all of them. The result is the same up to rounding. auto merges up to "
      "2048 tokens if the activations then grow by no more than an eighth of the memory for weights, "
      "gradients and optimizer state; never keeps activation memory to that of one micro-batch.");
  table->add_choice("pack_weights", &args->placement.pack_weights,
                    "Keep two extra copies of the weights, in the layouts that AMX matrix products read, so "
                    "that they need not be packed for every product. The result is the same. auto does so if "
                    "memory allows and the weights stay on the node for the whole step.");
  table->add_choice(
      "offload_optimizer_device", &args->placement.optimizer_device,
      "Where the optimizer's state and the remainders of the master weights are: none and cpu mean memory; "
      "nvme means a file per rank in offload_dir, on any local disk, from which they are streamed during the "
      "update. The result is the same.");
  table->add_choice(
      "offload_param_device", &args->placement.param_device,
      "Where the weights of decoder layers are kept: in memory (none, cpu) or in a file in offload_dir "
      "(nvme). With device cuda, none keeps them on the card, and cpu and nvme on the host, with gradients "
      "and the optimizer. With nvme, memory holds embedding, head, the layer in use and its neighbours; the "
      "next layer "
      "is read, and the last one written back, while this one is computed. Requires a single rank and, "
      "unless "
      "adapters are trained, optimizer_in_backward. The result is the same.");
  Flag& folder =
      table->add("offload_dir", &args->placement.offload_dir,
                 "Folder for what is kept on a disk; a fast local one. Its files have no names while they "
                 "are used (lsof +L1 lists them) and are gone when the run ends, however it ends. Defaults "
                 "to offload in output_dir.");
  folder.value_name = "DIR";
  folder.aliases = {"offload_optimizer_nvme_path", "offload_param_nvme_path"};
  limit(table->add("aio_block_size", &args->placement.transfers.block_bytes,
                   "Bytes of a transfer between memory and offload_dir, a multiple of 4096."),
        {static_cast<double>(kDirectAlignment), static_cast<double>(kMaxBlockBytes)});
  limit(table->add("aio_queue_depth", &args->placement.transfers.queue_depth,
                   "Transfers between memory and offload_dir that a rank has in flight for each file."),
        {1, static_cast<double>(kMaxQueueDepth)});
  table->add(
      "fit", &args->placement.fit,
      "Choose what memory and disk have room for: optimizer state and weights in memory or on a disk, "
      "when layers are updated, what the backward pass recomputes, and, only if nothing else fits, "
      "optimizer state or, with LoRA, the weights beside the adapters in fewer bits. Of what changes the "
      "numbers least, the fastest is taken. What is given stays as it is; a resumed run keeps its optim, "
      "clip_mode and quantization_bit. tessera plan --disk shows the choice.");
  table->add_choice("fit_choice", &args->placement.fit_choice,
                    "Of what fits, fit takes the fastest of those that change the numbers least (best), or "
                    "the fastest of all, whatever it rounds.");
  table->add_size("fit_memory", &args->placement.fit_memory_bytes, "24GiB",
                  "Memory of a node that fit may use. Defaults to what is free.");
  table->add_size("fit_disk", &args->placement.fit_disk_bytes, "80GB",
                  "Room on the disk of offload_dir that fit may use. Defaults to what is free.");
}

void resolve_offload(const FlagTable& table, int64_t world_size, RunSpec* args) {
  if (args->placement.transfers.block_bytes % kDirectAlignment != 0) {
    fail(ExitCode::kBadConfig, "aio_block_size: expected a multiple of {}, found {}", kDirectAlignment,
         args->placement.transfers.block_bytes);
  }
  const bool has_weights = args->placement.param_device == OffloadDevice::kNvme;
  const bool is_lora = args->lora.finetuning_type == FinetuningType::kLora;
  if (has_weights && !is_lora && !args->placement.optimizer_in_backward) {
    fail(ExitCode::kBadConfig,
         "offload_param_device nvme needs optimizer_in_backward: otherwise the update after the passes reads "
         "and writes all weights once more");
  }
  if (has_weights && world_size > 1) {
    fail(ExitCode::kBadConfig, "offload_param_device nvme needs one rank, found {}: {}", world_size,
         is_lora ? "the weights beside adapters are in memory once per node; quantization_bit 4 makes them "
                   "smaller"
                 : "zero_stage 3 with gather_schedule per_layer divides weights among nodes");
  }
  if (has_weights && args->placement.pack_weights == AutoChoice::kAlways) {
    fail(ExitCode::kBadConfig,
         "pack_weights always contradicts offload_param_device nvme: packed weights stay in memory");
  }
  const bool is_used = args->placement.optimizer_device == OffloadDevice::kNvme || has_weights ||
                       args->placement.offloads_inputs() || args->placement.fit;
  if (!args->placement.fit) {
    for (const char* name : {"fit_choice", "fit_memory", "fit_disk"}) {
      if (table.is_set(name)) log_warning("{} has no effect: fit is false", name);
    }
  }
  if (!is_used) {
    for (const char* name : {"offload_dir", "aio_block_size", "aio_queue_depth"}) {
      if (table.is_set(name)) log_warning("{} has no effect: nothing is kept on a disk", name);
    }
    args->placement.offload_dir.clear();
  } else if (args->placement.offload_dir.empty()) {
    args->placement.offload_dir = (std::filesystem::path(args->output_dir) / "offload").string();
  }
}

}  // namespace tessera
