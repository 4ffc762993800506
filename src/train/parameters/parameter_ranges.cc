#include "train/parameters/parameter_ranges.h"

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

std::vector<int64_t> first_ranges(const ParameterLayout& layout) {
  std::vector<int64_t> first;
  const std::vector<Parameter>& parameters = layout.parameters();
  for (int64_t i = 0; i < std::ssize(parameters); ++i) {
    while (std::ssize(first) <= parameters[static_cast<size_t>(i)].group) first.push_back(i);
  }
  while (first.size() <= layout.groups().size()) first.push_back(std::ssize(parameters));
  return first;
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
