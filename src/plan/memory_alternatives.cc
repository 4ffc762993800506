// Changes that would make a run fit.
#include <utility>

#include "base/divide_up.h"
#include "context/slice_batch.h"
#include "plan/memory_plan.h"
#include "plan/planned_model.h"

namespace tessera {
namespace {

// Each kept change is part of all later ones.
class AlternativeList {
 public:
  AlternativeList(const MemoryRequest& request, const MemoryChoices& choices)
      : request_(request), choices_(choices) {}

  void change_buffers() {
    if (request_.limits.pack_weights) {
      request_.limits.pack_weights = false;
      keep("pack_weights never");
    }
    if (request_.peer_snapshots) {
      request_.peer_snapshots = false;
      keep("peer_snapshot_steps 0");
    }
    if (choices_.micro_batches_per_pass > 1) {
      request_.zero.passes_per_step *= choices_.micro_batches_per_pass;
      set_limits(choices_.batch_size, request_.limits.max_sequence_length,
                 request_.limits.gradient_checkpointing);
      keep("merge_micro_batches never");
    }
  }

  // Changes to the sharding between nodes.
  void change_sharding() {
    ZeroSettings& zero = request_.zero;
    if (zero.outer) {
      zero.outer.reset();
      keep("sync_every 0");
    }
    if (request_.num_nodes == 1) return;
    if (zero.stage < 3) {
      zero.stage = 3;
      keep("zero_stage 3");
    }
    if (zero.schedule == GatherSchedule::kPerStep) {
      zero.schedule = GatherSchedule::kPerLayer;
      keep("gather_schedule per_layer");
    }
  }

  void change_rows() {
    const int64_t batch_size = choices_.batch_size;
    const int64_t num_passes = request_.zero.passes_per_step;
    const int64_t longest = request_.limits.max_sequence_length;
    const bool checkpointing = request_.limits.gradient_checkpointing;
    const std::string with_checkpointing = checkpointing ? "" : "gradient_checkpointing true and ";
    if (!checkpointing) {
      set_limits(batch_size, longest, true);
      offer("gradient_checkpointing true");
    }
    if (choices_.host_takes) {
      set_limits(batch_size, longest, checkpointing);
      keep_on_host("");
      set_limits(batch_size, longest, true);
      if (!checkpointing) keep_on_host(with_checkpointing);
    }
    if (choices_.has_disk && !request_.zero.state_folder) {
      set_limits(batch_size, longest, true);
      request_.zero.state_folder.emplace();
      offer(with_checkpointing + "offload_optimizer_device nvme");
      request_.zero.state_folder.reset();
    }
    for (int64_t size = batch_size / 2; size >= 1; size /= 2) {
      const std::string change = fmt::format("per_device_train_batch_size {}", size);
      if (choices_.keeps_global_batch) {
        request_.zero.passes_per_step = divide_up(num_passes * batch_size, size);
      }
      set_limits(size, longest, checkpointing);
      offer(change);
      if (checkpointing) continue;
      set_limits(size, longest, true);
      offer(with_checkpointing + change);
    }
    share_rows(longest, num_passes * batch_size, with_checkpointing);
    for (int64_t length = longest / 2; length >= 64; length /= 2) {
      set_limits(1, length, true);
      offer(fmt::format("{}{}max_length {}", with_checkpointing, with_one_row(), length));
    }
  }

  std::vector<MemoryAlternative> take() { return std::move(list_); }

 private:
  const char* with_one_row() const {
    return choices_.batch_size == 1 ? "" : "per_device_train_batch_size 1 and ";
  }

  // Several ranks have one row, and a global batch that is kept takes as many times more passes.
  void share_rows(int64_t longest, int64_t num_rows, const std::string& with) {
    const MemoryRequest whole_rows = request_;
    for (const int64_t size : choices_.context_sizes) {
      set_limits(1, longest, true);
      const int64_t of_row = request_.limits.max_tokens * whole_rows.context_size;
      request_.limits.max_tokens = tokens_of_member(of_row, size);
      request_.context_size = size;
      if (choices_.keeps_global_batch) {
        request_.zero.passes_per_step = num_rows * size / whole_rows.context_size;
      }
      offer(fmt::format("{}{}context_parallel_size {}", with, with_one_row(), size));
      list_.back().make_model = [make = choices_.make_model, size] { return make(size); };
    }
    request_ = whole_rows;
  }

  void set_limits(int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing) {
    const bool pack_weights = request_.limits.pack_weights;
    request_.limits = choices_.limits_for(batch_size, max_row_length, gradient_checkpointing);
    request_.limits.pack_weights = pack_weights;
  }

  // Moves state that the device's host has room for off the device.
  void keep_on_host(const std::string& with) {
    const ZeroSettings zero = request_.zero;
    for (const bool all_parameters : {false, true}) {
      if (zero.parameters_on_host || (zero.optimizer_on_host && !all_parameters)) continue;
      request_.zero.optimizer_on_host = true;
      request_.zero.parameters_on_host = all_parameters;
      if (!choices_.host_takes(request_)) continue;
      offer(with + (all_parameters ? "offload_param_device cpu" : "offload_optimizer_device cpu"));
    }
    request_.zero = zero;
  }

  void keep(const std::string& change) {
    offer(change);
    kept_ += change + " and ";
  }

  void offer(const std::string& change) { list_.push_back({kept_ + change, request_, {}}); }

  MemoryRequest request_;
  const MemoryChoices& choices_;
  std::string kept_;
  std::vector<MemoryAlternative> list_;
};

}  // namespace

std::vector<MemoryAlternative> memory_alternatives(const MemoryRequest& request,
                                                   const MemoryChoices& choices) {
  AlternativeList list(request, choices);
  list.change_buffers();
  list.change_sharding();
  list.change_rows();
  return list.take();
}

}  // namespace tessera
