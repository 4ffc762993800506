#include "forecast/time/step_time.h"

#include <algorithm>

#include "base/divide_up.h"
#include "context/slice_batch.h"
#include "model/offloaded_inputs.h"
#include "optim/newton_schulz.h"
#include "plan/expert_plan.h"
#include "shard/layout/weight_window.h"

namespace tessera {
namespace {

// Whether the model adds to the gradients of earlier passes itself, rather than the ranks of a node.
bool model_accumulates(const ZeroLayout& layout, const ZeroSettings& zero) {
  return layout.world_size() == 1 || !needs_layer_buffers(layout, zero);
}

// The layout as it is sharded.
ZeroLayout layout_of(const StepWalks& walks, const StepInputs& inputs) {
  return zero_layout(walks.layout(), sharding_nodes(inputs.zero, inputs.num_nodes), inputs.local_world_size);
}

class Predictor {
 public:
  Predictor(StepWalks& walks, const StepInputs& inputs, OpCosts& op_costs)
      : walks_(walks),
        inputs_(inputs),
        op_costs_(op_costs),
        share_{inputs.num_threads, inputs.local_world_size},
        layout_(layout_of(walks, inputs)) {
    inputs_.zero.weight_dtype = walks.dtype();
    inputs_.zero.passes_per_step = inputs.num_passes;
  }

  StepTime run() {
    const int64_t last = inputs_.num_passes - 1;
    std::vector<PassShape> passes = {pass_shape(0)};
    if (last > 1 && pass_shape(1) != pass_shape(last)) passes.push_back(pass_shape(1));
    if (last > 0) passes.push_back(pass_shape(last));
    op_costs_.prepare(walks_, passes, share_);
    add_pass(0, 1);
    // Passes between the first and the last are alike.
    if (last > 1) add_pass(1, static_cast<double>(last - 1));
    if (last > 0) add_pass(last, 1);
    if (!is_single()) time_.local_s += op_costs_.imbalance() * time_.compute_s();
    time_.optimizer_s = op_costs_.update_seconds(update_work(walks_, inputs_), share_);
    add_disk();
    if (layout_.num_nodes > 1) add_network();
    time_.network_s += tokens_network_s_;
    time_.exposed_s += tokens_network_s_;
    time_.other_s = op_costs_.step_s();
    if (inputs_.zero.outer && inputs_.num_nodes > 1) add_exchanges();
    return time_;
  }

 private:
  bool is_single() const { return layout_.world_size() == 1; }
  bool accumulates() const { return model_accumulates(layout_, inputs_.zero); }

  PassShape pass_shape(int64_t pass) const { return tessera::pass_shape(walks_, inputs_, op_costs_, pass); }

  void add_pass(int64_t pass, double repeats) {
    if (inputs_.zero.computes_twice) repeats *= 2;
    const PassWork& work = walks_.pass(pass_shape(pass));
    StepTime of_pass;
    forward_s_ += repeats * seconds_of(work.forward, &of_pass);
    backward_s_ += repeats * seconds_of(work.backward, &of_pass);
    time_.products_s += repeats * of_pass.products_s;
    time_.attention_s += repeats * of_pass.attention_s;
    time_.elementwise_s += repeats * of_pass.elementwise_s;
    if (pass == 0) {  // every rank of the node packs its share
      StepTime packing;
      time_.products_s += seconds_of(work.packing, &packing) / inputs_.local_world_size;
    }
    if (!accumulates()) time_.local_s += repeats * node_seconds(/*adds=*/pass > 0);
    if (inputs_.zero.divides_experts) add_expert_exchanges(pass_shape(pass), repeats);
    if (inputs_.context_size == 1) return;
    add_all_to_alls(work.forward, repeats);
    add_all_to_alls(work.backward, repeats);
  }

  void add_expert_exchanges(const PassShape& pass, double repeats) {
    const int64_t num_exchanges =
        num_expert_layers(walks_.config()) * (kForwardExchanges + kBackwardExchanges);
    const int64_t rows = expert_rows_bytes(walks_.config(), walks_.dtype(), pass.num_tokens());
    const int64_t sent =
        num_exchanges * inputs_.local_world_size * rows / inputs_.num_nodes * (inputs_.num_nodes - 1);
    tokens_network_s_ += repeats * op_costs_.network_seconds(sent, sent, num_exchanges);
  }

  void add_all_to_alls(const std::vector<CountedWork>& works, double repeats) {
    const int64_t num_nodes = inputs_.context_size / inputs_.local_world_size;  // 0: several teams on a node
    for (const auto& [work, count] : works) {
      for (const int64_t bytes : all_to_all_sizes(work)) {
        const double times = repeats * static_cast<double>(count);
        time_.local_s += times * all_to_all_seconds(bytes, walks_.dtype(), share_, op_costs_);
        if (num_nodes <= 1) continue;
        const int64_t sent = inputs_.local_world_size * bytes / num_nodes * (num_nodes - 1);
        tokens_network_s_ += times * op_costs_.network_seconds(sent, sent, 1);
      }
    }
  }

  // Adds the seconds of these operations to *time, by part.
  double seconds_of(const std::vector<CountedWork>& works, StepTime* time) const {
    double total = 0;
    for (const auto& [work, count] : works) {
      const double seconds = static_cast<double>(count) * op_costs_.seconds(work, share_);
      total += seconds;
      (work.kind == WorkKind::kAttention     ? time->attention_s
       : work.kind == WorkKind::kElementwise ? time->elementwise_s
                                             : time->products_s) += seconds;
    }
    return total;
  }

  // The ranks of a node sum the gradients of a pass, group by group.
  double node_seconds(bool adds) {
    const int64_t share = divide_up(layout_.num_elements(), layout_.local_world_size);
    const auto num_groups = static_cast<double>(layout_.groups.size());
    return op_costs_.node_sum_seconds(share, adds, share_) + num_groups * op_costs_.node_latency_s();
  }

  // Weights and inputs of layers move while the passes compute. State is read and written once. As much of it
  // as the ring of buffers holds also moves during the passes, when the disk is idle: the first reads of an
  // update, and the last writes of the previous one. The rest moves during the update.
  void add_disk() {
    const ZeroMemory memory = zero_memory(layout_, inputs_.zero);
    const int64_t num_layers = std::ssize(layout_.groups) - 2;
    const int64_t num_moved = std::max<int64_t>(0, num_layers - kLayerSlots);
    const int64_t in_file = memory.weight_file_bytes + inputs_.frozen_file_bytes;
    const int64_t weight_bytes = num_layers == 0 ? 0 : in_file * num_moved / num_layers;
    const int64_t num_passes = inputs_.num_passes * (inputs_.zero.computes_twice ? 2 : 1);
    const int64_t forward_bytes = num_passes * (weight_bytes + input_bytes());
    const double forward_s = seconds_on_disk(forward_bytes);
    const double backward_s = seconds_on_disk(forward_bytes + memory.weight_file_bytes);
    const double state_s = seconds_on_disk(2 * memory.state_file_bytes);
    const double hidden_s = hidden_state_seconds(memory, std::max(0.0, forward_s_ - forward_s),
                                                 std::max(0.0, backward_s_ - backward_s));
    time_.disk_s = forward_s + backward_s + state_s;
    time_.disk_wait_s = std::max(0.0, forward_s - forward_s_) + std::max(0.0, backward_s - backward_s_) +
                        std::max(0.0, state_s - hidden_s - time_.optimizer_s);
  }

  // Seconds of the state's transfers that the passes hide while the disk is idle for the given times. Updates
  // in the backward pass come after the head, every layer and the embedding: transfers before the head's
  // update have all passes except the last backward, those of each layer its share of that, and those of the
  // embedding, whose gradients take no time, nothing.
  double hidden_state_seconds(const ZeroMemory& memory, double forward_idle_s, double backward_idle_s) const {
    const auto moved_s = [&](int64_t read, int64_t written) {
      return seconds_on_disk(std::min(memory.state_ahead_bytes, read) +
                             std::min(memory.state_ahead_bytes, written));
    };
    const int64_t num_layers = std::ssize(layout_.groups) - 2;
    if (!inputs_.zero.optimizer_in_backward || num_layers == 0) {
      return std::min(moved_s(memory.state_file_bytes, memory.state_file_bytes),
                      forward_idle_s + backward_idle_s);
    }
    const auto num_elements = static_cast<double>(layout_.num_elements());
    const auto state_of = [&](const Part& group) {
      return static_cast<int64_t>(static_cast<double>(memory.state_file_bytes) *
                                  (static_cast<double>(group.size()) / num_elements));
    };
    const double last_s = backward_idle_s / (inputs_.zero.computes_twice ? 2 : 1);
    double hidden_s = std::min(moved_s(state_of(layout_.groups.back()), state_of(layout_.groups.front())),
                               forward_idle_s + backward_idle_s - last_s);
    for (int64_t layer = num_layers; layer > 0; --layer) {
      const auto at = static_cast<size_t>(layer);
      hidden_s += std::min(moved_s(state_of(layout_.groups[at]), state_of(layout_.groups[at + 1])),
                           last_s / static_cast<double>(num_layers));
    }
    return hidden_s;
  }

  // Seconds if every rank of the node moves `bytes`.
  double seconds_on_disk(int64_t bytes) const {
    return bytes == 0 ? 0 : op_costs_.disk_seconds(bytes * inputs_.local_world_size);
  }

  // The inputs of layers that a pass writes, and reads.
  int64_t input_bytes() const {
    if (!inputs_.offload_inputs) return 0;
    const ModelConfig& config = walks_.config();
    return OffloadedInputs::file_bytes(
        config.num_hidden_layers,
        OffloadedInputs::slot_bytes(
            tokens_of_member(inputs_.pass_rows * inputs_.row_tokens, inputs_.context_size) *
            config.hidden_size * dtype_bytes(walks_.dtype())));
  }

  // Gathers overlap the forward passes, reductions (and their gathers) the backward passes. Under per_step
  // the network is used only in the first forward pass and the last backward pass.
  void add_network() {
    const WireBytes wire = wire_bytes_per_step(layout_, inputs_.zero, /*node_rank=*/0);
    const bool in_every_pass = shards_weights(layout_, inputs_.zero);
    const auto num_passes = static_cast<double>(inputs_.num_passes);
    const double num_uses = in_every_pass ? num_passes : 1;
    const auto num_groups = std::ssize(layout_.groups);
    const int64_t num_transfers = num_groups * static_cast<int64_t>(num_uses);
    const double gather_s =
        op_costs_.network_seconds(wire.sent_gather, wire.received_gather, num_transfers) / num_uses;
    const double reduce_s =
        op_costs_.network_seconds(wire.sent_reduce, wire.received_reduce, num_transfers) / num_uses;
    time_.network_s = num_uses * (gather_s + reduce_s);
    const double forward_gather_s = in_every_pass ? gather_s / 2 : gather_s;
    const double exposed_s = std::max(0.0, forward_gather_s - forward_s_ / num_passes) +
                             std::max(0.0, gather_s - forward_gather_s + reduce_s - backward_s_ / num_passes);
    time_.exposed_s = inputs_.zero.overlap ? num_uses * exposed_s : time_.network_s;
  }

  // The exchanges of nodes that train on their own, averaged over the steps between two of them. An exchange
  // whose result is used some steps later runs alongside those steps.
  void add_exchanges() {
    const OuterSettings& outer = *inputs_.zero.outer;
    const ZeroLayout job = zero_layout(walks_.layout(), inputs_.num_nodes, inputs_.local_world_size);
    const WireBytes wire = outer_wire_bytes(job, inputs_.zero, /*node_rank=*/0);
    const int64_t num_transfers = OuterPlan(job, inputs_.zero, /*local_rank=*/0).num_pieces();
    const double seconds = op_costs_.network_seconds(wire.sent_gather, wire.received_gather, num_transfers) +
                           op_costs_.network_seconds(wire.sent_reduce, wire.received_reduce, num_transfers);
    const auto num_fragments = static_cast<double>(outer.num_fragments);
    const double meanwhile_s = static_cast<double>(outer.sync_delay) * time_.step_s();
    const auto every = static_cast<double>(outer.sync_every);
    time_.network_s = seconds / every;
    time_.exposed_s = num_fragments * std::max(0.0, seconds / num_fragments - meanwhile_s) / every;
  }

  StepWalks& walks_;
  StepInputs inputs_;
  OpCosts& op_costs_;
  RankShare share_;
  ZeroLayout layout_;
  StepTime time_;
  double forward_s_ = 0, backward_s_ = 0;  // of all passes
  double tokens_network_s_ = 0;
};

}  // namespace

StepInputs step_inputs(const MemoryRequest& request, int64_t row_tokens, int64_t micro_batch_rows,
                       int64_t gradient_accumulation_steps, int64_t micro_batches_per_pass,
                       int64_t num_threads) {
  StepInputs inputs;
  inputs.row_tokens = row_tokens;
  inputs.num_passes = divide_up(gradient_accumulation_steps, micro_batches_per_pass);
  inputs.pass_rows = micro_batch_rows * micro_batches_per_pass;
  inputs.last_pass_rows =
      micro_batch_rows * (gradient_accumulation_steps - (inputs.num_passes - 1) * micro_batches_per_pass);
  inputs.gradient_checkpointing = request.limits.gradient_checkpointing;
  inputs.num_kept_outputs = request.limits.num_kept_outputs;
  inputs.offload_inputs = request.limits.offload_inputs;
  inputs.pack_weights = request.limits.pack_weights;
  inputs.context_size = request.context_size;
  inputs.num_threads = num_threads;
  inputs.num_nodes = request.num_nodes;
  inputs.local_world_size = request.local_world_size;
  inputs.frozen_file_bytes = request.frozen_file_bytes;
  inputs.zero = request.zero;
  return inputs;
}

PassShape pass_shape(const StepWalks& walks, const StepInputs& inputs, const OpCosts& op_costs,
                     int64_t pass) {
  const ZeroLayout layout = layout_of(walks, inputs);
  ZeroSettings zero = inputs.zero;
  zero.passes_per_step = inputs.num_passes;
  const bool is_last = pass + 1 == inputs.num_passes;
  PassShape shape = {is_last ? inputs.last_pass_rows : inputs.pass_rows, inputs.row_tokens};
  shape.gradient_checkpointing = inputs.gradient_checkpointing;
  shape.num_kept_outputs = inputs.num_kept_outputs;
  shape.pack_weights = inputs.pack_weights && op_costs.packs_weights(walks.dtype());
  shape.adds = model_accumulates(layout, zero) && pass > 0;
  shape.squares = layout.world_size() == 1 && is_last;
  shape.context_size = inputs.context_size;
  return shape;
}

UpdateWork update_work(const StepWalks& walks, const StepInputs& inputs) {
  const ZeroLayout layout = layout_of(walks, inputs);
  const bool is_single = layout.world_size() == 1;
  const int64_t num_owners = inputs.zero.stage == 0 ? layout.local_world_size : layout.world_size();
  UpdateWork work;
  work.num_elements = divide_up(layout.num_elements(), num_owners);
  work.weight_dtype = walks.dtype();
  work.gradient_dtype = is_single ? DType::kF32 : inputs.zero.gradient_dtype;
  const StateTensors tensors = inputs.zero.state_tensors;
  work.state_bytes = largest_state_bytes(layout, inputs.zero, inputs.zero.stage == 0);
  for (const StateTensor& tensor : tensors) {
    if (is_block_code(tensor.dtype)) work.has_codes = true;
    // Sums of rows and columns, the size of the update, the update.
    if (tensor.extent == StateExtent::kRows) work.gradient_reads = 3;
    if (tensor.extent != StateExtent::kHiddenElements) continue;
    for (const ZeroParameter& parameter : layout.parameters) {
      if (parameter.shape.is_hidden)
        work.flop += newton_schulz_flop(parameter.shape.rows, parameter.shape.columns) / num_owners;
    }
  }
  work.sums_squares = !is_single;
  return work;
}

StepTime predict_step(StepWalks& walks, const StepInputs& inputs, OpCosts& op_costs) {
  return Predictor(walks, inputs, op_costs).run();
}

}  // namespace tessera
