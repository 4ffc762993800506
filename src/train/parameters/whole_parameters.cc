#include "train/parameters/whole_parameters.h"

#include <algorithm>

#include "platform/prefault.h"
#include "train/guards/not_finite.h"

namespace tessera {
namespace {

std::vector<ParameterRange> parameter_ranges(const ParameterLayout& layout, bool decay_all) {
  std::vector<ParameterRange> ranges;
  for (const Parameter& parameter : layout.parameters()) {
    ranges.push_back({parameter.offset, parameter.num_elements, decay_all || parameter.weight_decay});
  }
  return ranges;
}

// Index of the first range of every group, plus the end; each range is a parameter.
std::vector<int64_t> first_ranges(const ParameterLayout& layout) {
  std::vector<int64_t> first;
  const std::vector<Parameter>& parameters = layout.parameters();
  for (int64_t i = 0; i < std::ssize(parameters); ++i) {
    while (std::ssize(first) <= parameters[static_cast<size_t>(i)].group) first.push_back(i);
  }
  first.push_back(std::ssize(parameters));
  return first;
}

}  // namespace

WholeParameters::WholeParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer,
                                 bool decay_all, ThreadPool& pool)
    : model_(&model),
      pool_(&pool),
      weights_(model.layout().num_elements() * dtype_bytes(model.dtype())),
      gradients_(model.layout().num_elements() * dtype_bytes(DType::kF32)),
      first_range_(first_ranges(model.layout())),
      state_(std::move(optimizer), parameter_ranges(model.layout(), decay_all), weights(), gradients(),
             pool) {
  prefault(pool, weights_.as<std::byte>());
  prefault(pool, gradients_.as<std::byte>());
  model.bind_parameters(weights(), gradients());
}

TensorView WholeParameters::weights() const {
  return {weights_.data(), model_->dtype(), {model_->layout().num_elements()}};
}

TensorView WholeParameters::gradients() const {
  return {gradients_.data(), DType::kF32, {model_->layout().num_elements()}};
}

// Goes through the optimizer so that float32 weights reach the masters bit for bit; bfloat16 values are exact
// masters already.
void WholeParameters::load(const SafetensorsModel& file, LoadOnce /*once*/,
                           const std::function<void(const LoadProgress&)>& progress) {
  const WeightSink sink = [this](int64_t begin, std::span<const float> values) {
    state_.write_master(begin, values);
  };
  LoadOptions options;
  options.progress = progress;
  if (model_->dtype() == DType::kBF16) {
    options.bf16_destination = [this](int64_t begin, int64_t count) {
      return weights_.as<bf16>().subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    };
  }
  load_weights(file, model_->config(), model_->layout(), sink, *pool_, options);
}

// The products of the last pass sum the squares of gradient elements as they write them.
WeightUpdate WholeParameters::begin_pass(bool is_first, bool is_last) {
  if (is_first) squares_ = 0;
  return {is_first ? Update::kOverwrite : Update::kAdd, is_last ? &squares_ : nullptr};
}

std::string WholeParameters::not_finite_gradient() const {
  for (const Parameter& parameter : model_->layout().parameters()) {
    const TensorView gradient = gradients().rows(parameter.offset, parameter.offset + parameter.num_elements);
    if (first_not_finite(gradient)) return parameter.name;
  }
  return "";
}

void WholeParameters::update(const OptimizerStep& step, const ChangeHook& before_change) {
  const std::vector<ParameterLayout::Group>& groups = model_->layout().groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (before_change) before_change({groups[g].begin, groups[g].end});
    state_.update(first_range_[g], first_range_[g + 1], step);
  }
  model_->weights_changed();
}

void WholeParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  state_.read(kind, begin, begin, values);
}

void WholeParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  state_.write(kind, begin, begin, values);
}

void WholeParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  write([this](int64_t begin, std::span<float> values) { state_.read_master(begin, values); });
}

}  // namespace tessera
