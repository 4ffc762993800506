#include "shard/layout/model_places.h"

#include <utility>

#include "checkpoint/run_state.h"

namespace tessera {

ZeroLayout zero_layout(const ParameterLayout& layout, int num_nodes, int local_world_size) {
  ZeroLayout out;
  for (const ParameterLayout::Group& group : layout.groups()) out.groups.push_back({group.begin, group.end});
  out.alignment = kParameterAlignment;
  out.num_nodes = num_nodes;
  out.local_world_size = local_world_size;
  out.tied_embeddings = is_vector(layout.parameters().back().kind);
  for (const Parameter& parameter : layout.parameters()) {
    out.parameters.push_back(
        {{parameter.offset, parameter.offset + parameter.num_elements}, shape_of(parameter)});
    if (parameter.expert < 0) continue;
    out.expert_begins.resize(out.groups.size());
    std::vector<int64_t>& begins = out.expert_begins[static_cast<size_t>(parameter.group)];
    if (std::ssize(begins) == parameter.expert) begins.push_back(parameter.offset);
  }
  return out;
}

LayerPlaces frozen_places(const TrainableModel& model, const ZeroSettings& settings) {
  if (!model.is_adapted()) return {};
  std::vector<int64_t> sizes;
  for (int64_t group = 0; group < std::ssize(model.weight_layout().groups()); ++group) {
    sizes.push_back(model.frozen_begin(group + 1) - model.frozen_begin(group));
  }
  return layer_places(std::move(sizes), settings.frozen_folder.has_value());
}

DeviceWindowPlaces trained_window(const TrainableModel& model) {
  const ZeroLayout layout = zero_layout(model.layout(), 1, 1);
  std::vector<int64_t> sizes;
  for (const Part& group : layout.groups) sizes.push_back(group.size() * dtype_bytes(model.dtype()));
  return device_window_places(std::move(sizes), &layout);
}

DeviceWindowPlaces frozen_window(const TrainableModel& model) {
  if (!model.is_adapted()) return {};
  return device_window_places(frozen_places(model, {}).sizes, nullptr);
}

}  // namespace tessera
