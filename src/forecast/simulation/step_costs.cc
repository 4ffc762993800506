#include "forecast/simulation/step_costs.h"

#include <map>
#include <numeric>

#include "base/divide_up.h"
#include "plan/expert_plan.h"

namespace tessera {
namespace {

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

void scale(std::vector<double>* values, double factor) {
  for (double& value : *values) value *= factor;
}

// Deals `total` to the groups by their elements.
std::vector<double> by_elements(double total, const ZeroLayout& layout) {
  std::vector<double> shares;
  for (const Part& group : layout.groups) {
    shares.push_back(total * static_cast<double>(group.size()) / static_cast<double>(layout.num_elements()));
  }
  return shares;
}

double seconds_of_all_to_alls(const OpWork& work, DType dtype, const RankShare& share, OpCosts& op_costs) {
  double seconds = 0;
  for (const int64_t bytes : all_to_all_sizes(work))
    seconds += all_to_all_seconds(bytes, dtype, share, op_costs);
  return seconds;
}

StepCosts::Pass cost_of_pass(const StepWalks& walks, const PassShape& shape, const RankShare& share,
                             OpCosts& op_costs) {
  StepCosts::Pass pass;
  pass.forward_s.resize(walks.layout().groups().size());
  pass.backward_s.resize(pass.forward_s.size());
  std::map<OpWork, double> priced;
  walk_pass(walks.config(), walks.dtype(), shape, [&](const OpCall& call, const WalkPosition& position) {
    const OpWork work = work_of(call);
    if (work.kind == WorkKind::kPacking) return;
    const auto [seconds, is_new] = priced.try_emplace(work);
    if (is_new) {
      seconds->second = op_costs.seconds(work, share);
      if (shape.context_size > 1)
        seconds->second += seconds_of_all_to_alls(work, walks.dtype(), share, op_costs);
    }
    // The walk opens nothing for the embedding's gradient, which follows the first layer's.
    const int64_t group = work.name == "embedding_backward" ? 0 : position.group;
    (position.is_forward ? pass.forward_s : pass.backward_s)[static_cast<size_t>(group)] += seconds->second;
  });
  return pass;
}

std::vector<int64_t> expert_bytes(const StepWalks& walks, const PassShape& shape, const StepInputs& inputs) {
  std::vector<int64_t> bytes(walks.layout().groups().size());
  if (!inputs.zero.divides_experts) return bytes;
  const ModelConfig& config = walks.config();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.has_experts(layer))
      bytes[static_cast<size_t>(layer) + 1] =
          inputs.local_world_size * expert_rows_bytes(config, walks.dtype(), shape.num_tokens());
  }
  return bytes;
}

}  // namespace

double StepCosts::passes_s() const {
  double total = sum_of(packing_s);
  for (const Pass& pass : passes) total += sum_of(pass.forward_s) + sum_of(pass.backward_s);
  return total;
}

void StepCosts::scale_passes(double factor) {
  for (Pass& pass : passes) {
    scale(&pass.forward_s, factor);
    scale(&pass.backward_s, factor);
  }
  for (std::vector<double>* part : {&packing_s, &first_sum_s, &further_sum_s, &own_sum_s})
    scale(part, factor);
}

void StepCosts::set_update(double seconds) { scale(&update_s, seconds / sum_of(update_s)); }

StepCosts step_costs(StepWalks& walks, const StepInputs& inputs, OpCosts& op_costs) {
  const RankShare share = {inputs.num_threads, inputs.local_world_size};
  const ZeroLayout layout =
      zero_layout(walks.layout(), sharding_nodes(inputs.zero, inputs.num_nodes), inputs.local_world_size);
  std::vector<PassShape> shapes;
  for (int64_t pass = 0; pass < inputs.num_passes; ++pass) {
    shapes.push_back(pass_shape(walks, inputs, op_costs, pass));
  }
  std::vector<PassShape> different;
  for (const PassShape& shape : shapes) {
    if (different.empty() || different.back() != shape) different.push_back(shape);
  }
  op_costs.prepare(walks, different, share);

  StepCosts costs;
  std::map<PassShape, StepCosts::Pass> by_shape;
  for (const PassShape& shape : shapes) {
    const auto [cost, is_new] = by_shape.try_emplace(shape);
    if (is_new) {
      cost->second = cost_of_pass(walks, shape, share, op_costs);
      cost->second.expert_bytes = expert_bytes(walks, shape, inputs);
    }
    costs.passes.push_back(cost->second);
  }
  double packing_s = 0;
  for (const auto& [work, count] : walks.pass(shapes.front()).packing) {
    packing_s += static_cast<double>(count) * op_costs.seconds(work, share);
  }
  costs.packing_s = by_elements(packing_s / inputs.local_world_size, layout);
  for (const Part& group : layout.groups) {
    const int64_t of_rail = divide_up(group.size(), inputs.local_world_size);
    const int64_t own = divide_up(group.size(), layout.world_size());
    const double waiting_s = inputs.local_world_size > 1 ? op_costs.node_latency_s() : 0;
    costs.first_sum_s.push_back(op_costs.node_sum_seconds(of_rail, false, share) + waiting_s);
    costs.further_sum_s.push_back(op_costs.node_sum_seconds(of_rail, true, share) + waiting_s);
    costs.own_sum_s.push_back(op_costs.node_sum_seconds(own, inputs.num_passes > 1, {share.num_threads, 1}));
  }
  costs.update_s = by_elements(op_costs.update_seconds(update_work(walks, inputs), share), layout);
  if (layout.world_size() > 1) {
    for (StepCosts::Pass& pass : costs.passes) {
      scale(&pass.forward_s, 1 + op_costs.imbalance());
      scale(&pass.backward_s, 1 + op_costs.imbalance());
    }
  }
  costs.other_s = op_costs.step_s();
  return costs;
}

}  // namespace tessera
