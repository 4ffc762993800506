#include "plan/disk_plan.h"

#include <sys/stat.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "io/disk_space.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string space_text(int64_t bytes) {
  return bytes > kUnknownSpaceBytes / 2 ? "an unknown number of bytes" : format_bytes(bytes);
}

std::string checkpoints_text(const DiskPlan& plan) {
  return fmt::format("{} {} of {}", format_count(plan.num_checkpoints),
                     plan.num_checkpoints == 1 ? "checkpoint" : "checkpoints",
                     format_bytes(plan.checkpoint_bytes));
}

}  // namespace

DiskPlan plan_disk(const ParameterLayout& layout, const StoredParts& parts, const CheckpointCount& count) {
  DiskPlan plan;
  plan.model_bytes = parts.bytes(StoredParts::kModel, layout.num_parameters());
  plan.checkpoint_bytes = stored_bytes(layout, {{0, layout.num_elements()}}, parts);
  plan.num_checkpoints = count.num_saves;
  if (count.total_limit) {
    const int64_t more = std::max<int64_t>(*count.total_limit + 1 - count.num_present, 1);
    plan.num_checkpoints = std::min(count.num_saves, more);
  }
  return plan;
}

int64_t offload_bytes(const TrainableModel& model, int num_nodes, int local_world_size,
                      const ZeroSettings& settings) {
  const ZeroMemory memory = zero_memory(zero_layout(model.layout(), num_nodes, local_world_size), settings);
  return frozen_places(model, settings).file_bytes + memory.weight_file_bytes +
         memory.state_file_bytes * local_world_size;
}

int64_t discarded_offload_bytes(const TrainableModel& model, int num_nodes, int local_world_size,
                                const ZeroSettings& settings) {
  const ZeroLayout layout = zero_layout(model.layout(), num_nodes, local_world_size);
  return zero_memory(layout, settings).discarded_file_bytes * local_world_size;
}

int64_t num_checkpoints_in(const fs::path& output_dir) {
  std::error_code error;
  int64_t count = 0;
  for (fs::directory_iterator entry(output_dir, error), end; !error && entry != end; entry.increment(error)) {
    if (parse_checkpoint_name(entry->path().filename().native())) ++count;
  }
  return count;
}

int64_t free_disk_bytes(const fs::path& folder) {
  const fs::path existing = nearest_existing(folder);
  std::error_code error;
  const fs::space_info space = disk_space(existing, error);
  if (error)
    fail(ExitCode::kIoError, "cannot read the free space of {}: {}", existing.string(), error.message());
  return static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
}

bool share_disk(const fs::path& a, const fs::path& b) {
  struct stat of_a = {}, of_b = {};
  return ::stat(nearest_existing(a).c_str(), &of_a) == 0 && ::stat(nearest_existing(b).c_str(), &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev;
}

std::string offload_refusal(const DiskPlan& plan, const std::string& offload_dir) {
  const int64_t needed =
      plan.offload_shares_disk ? plan.bytes_beside_model() + plan.model_bytes : plan.offload_bytes;
  if (needed <= plan.offload_free_bytes) return "";
  return fmt::format(
      "offload_dir {}: not enough disk space for what a node keeps there{}: {} needed, {} free; free some "
      "space, choose a folder on another disk, or an optim with less state",
      offload_dir, needed > plan.offload_bytes ? " beside the finished model" : "", format_bytes(needed),
      format_bytes(plan.offload_free_bytes));
}

std::string disk_refusal(const DiskPlan& plan, const std::string& output_dir) {
  if (plan.model_bytes <= plan.bytes_left()) return "";
  return fmt::format(
      "output_dir {}: not enough disk space for the finished model: {} needed, {} free; free some space or "
      "choose a folder on another disk",
      output_dir, format_bytes(plan.model_bytes), format_bytes(plan.bytes_left()));
}

std::string disk_warning(const DiskPlan& plan, const std::string& output_dir) {
  if (plan.total_bytes() <= plan.bytes_left()) return "";
  // While a checkpoint is being written there is one more than are kept.
  const int64_t num_kept = (plan.bytes_left() - plan.model_bytes) / plan.checkpoint_bytes - 1;
  const std::string advice = num_kept >= 1 ? fmt::format("save_total_limit {} would fit", num_kept)
                                           : "free some space or choose a folder on another disk";
  return fmt::format(
      "output_dir {}: not enough disk space for {} and the model of {}: {} needed, {} free; checkpoints will "
      "fail once the disk is full; {}",
      output_dir, checkpoints_text(plan), format_bytes(plan.model_bytes), format_bytes(plan.total_bytes()),
      format_bytes(plan.bytes_left()), advice);
}

std::string disk_text(const DiskPlan& plan) {
  const std::string text = fmt::format("model {}{}; {} free", format_bytes(plan.model_bytes),
                                       plan.num_checkpoints > 0 ? ", at most " + checkpoints_text(plan) : "",
                                       space_text(plan.bytes_left()));
  if (plan.offload_bytes == 0) return text;
  return fmt::format(
      "offloaded {}{}; {}", format_bytes(plan.offload_bytes),
      plan.offload_shares_disk ? "" : fmt::format(" elsewhere, {} free", space_text(plan.offload_free_bytes)),
      text);
}

}  // namespace tessera
