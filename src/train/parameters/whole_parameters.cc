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
  while (first.size() <= layout.groups().size()) first.push_back(std::ssize(parameters));
  return first;
}

}  // namespace

WholeParameters::FlatArray::FlatArray(Device& device, DType dtype, int64_t num_elements, ThreadPool& pool)
    : memory(device.allocate(num_elements * dtype_bytes(dtype))), view(memory.view(dtype, {num_elements})) {
  if (!view.is_on_host()) host_copy = host_device().allocate(memory.size_bytes());
  host_view = view.is_on_host() ? view : host_copy.view(dtype, {num_elements});
  prefault(pool, {host_view.bytes(), static_cast<size_t>(host_view.size_bytes())});
}

void WholeParameters::FlatArray::to_host(int64_t begin, int64_t end) const {
  if (!view.is_on_host()) copy(view.rows(begin, end), host_view.rows(begin, end));
}

void WholeParameters::FlatArray::to_device(int64_t begin, int64_t end) const {
  if (!view.is_on_host()) copy(host_view.rows(begin, end), view.rows(begin, end));
}

WholeParameters::WholeParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer,
                                 bool decay_all, ThreadPool& pool)
    : model_(&model),
      pool_(&pool),
      weights_(model.device(), model.dtype(), model.layout().num_elements(), pool),
      gradients_(model.device(), DType::kF32, model.layout().num_elements(), pool),
      first_range_(first_ranges(model.layout())),
      state_(std::move(optimizer), parameter_ranges(model.layout(), decay_all), weights_.host_view,
             gradients_.host_view, pool) {
  model.bind_parameters(weights_.view, gradients_.view);
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
      return std::span(weights_.host_view.as<bf16>() + begin, static_cast<size_t>(count));
    };
  }
  load_weights(file, model_->config(), model_->layout(), sink, *pool_, options);
  state_written();
}

// The products of the last pass sum the squares of gradient elements as they write them.
WeightUpdate WholeParameters::begin_pass(bool is_first, bool is_last) {
  if (is_first) squares_ = 0;
  return {is_first ? Update::kOverwrite : Update::kAdd, is_last ? &squares_ : nullptr};
}

std::string WholeParameters::not_finite_gradient() const {
  for (const Parameter& parameter : model_->layout().parameters()) {
    const int64_t begin = parameter.offset, end = begin + parameter.num_elements;
    gradients_.to_host(begin, end);
    if (first_not_finite(gradients_.host_view.rows(begin, end))) return parameter.name;
  }
  return "";
}

void WholeParameters::update(const OptimizerStep& step, const ChangeHook& before_change) {
  const std::vector<ParameterLayout::Group>& groups = model_->layout().groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const ParameterLayout::Group& group = groups[g];
    if (before_change) before_change({group.begin, group.end});
    gradients_.to_host(group.begin, group.end);
    state_.update(first_range_[g], first_range_[g + 1], step);
    weights_.to_device(group.begin, group.end);
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

void WholeParameters::state_written() {
  weights_.to_device(0, model_->layout().num_elements());
  model_->weights_changed();
}

}  // namespace tessera
