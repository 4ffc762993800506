#include "shard/parameters/parameter_ranges.h"

#include <algorithm>

#include "checkpoint/run_state.h"

namespace tessera {

std::vector<ParameterRange> parameter_ranges(const ParameterLayout& layout, bool decay_all) {
  std::vector<ParameterRange> ranges;
  for (const Parameter& parameter : layout.parameters()) {
    ranges.push_back({.begin = parameter.offset,
                      .count = parameter.num_elements,
                      .weight_decay = decay_all || parameter.weight_decay,
                      .shape = shape_of(parameter)});
  }
  return ranges;
}

std::vector<int64_t> first_ranges(const ParameterLayout& layout, const std::vector<ParameterRange>& ranges) {
  std::vector<int64_t> first;
  for (const ParameterLayout::Group& group : layout.groups()) {
    const auto at = std::ranges::lower_bound(ranges, group.begin, {}, &ParameterRange::begin);
    first.push_back(at - ranges.begin());
  }
  first.push_back(std::ssize(ranges));
  return first;
}

std::vector<int64_t> first_ranges(const ParameterLayout& layout) {
  return first_ranges(layout, parameter_ranges(layout, /*decay_all=*/false));
}

std::optional<StateFileSettings> state_file(const ZeroSettings& settings, int rank) {
  if (!settings.state_folder) return std::nullopt;
  return StateFileSettings{settings.state_folder->path / fmt::format("rank-{}.state", rank),
                           settings.state_folder->transfers, settings.state_folder->chunks_ahead};
}

void load_masters(const SafetensorsModel& file, const TrainableModel& model, TensorView weights,
                  OptimizerState& state, ThreadPool& pool,
                  const std::function<void(const LoadProgress&)>& progress) {
  const WeightSink sink = [&state](int64_t begin, std::span<const float> values) {
    state.write_master(begin, values);
  };
  LoadOptions options;
  options.progress = progress;
  if (model.dtype() == DType::kBF16) {
    options.bf16_destination = [weights](int64_t begin, int64_t count) {
      return std::span(weights.as<bf16>() + begin, static_cast<size_t>(count));
    };
  }
  load_weights(file, model.config(), model.layout(), sink, pool, options);
}

}  // namespace tessera
