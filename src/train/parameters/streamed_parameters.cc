#include "train/parameters/streamed_parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "optim/clip.h"
#include "plan/memory_plan.h"
#include "platform/prefault.h"
#include "train/guards/not_finite.h"
#include "train/parameters/parameter_ranges.h"

namespace tessera {
namespace {

// As those of whole parameters, with the gradients where the window has them.
std::vector<ParameterRange> streamed_ranges(const ParameterLayout& layout, bool decay_all,
                                            const GradientWindow& window) {
  std::vector<ParameterRange> ranges = parameter_ranges(layout, decay_all);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto group = static_cast<size_t>(layout.parameters()[i].group);
    ranges[i].gradient_begin += window.begin[group] - layout.groups()[group].begin;
  }
  return ranges;
}

TensorView flat_view(const PageBuffer& memory, DType dtype) {
  return {memory.data(), dtype, {memory.size_bytes() / dtype_bytes(dtype)}};
}

}  // namespace

StreamedParameters::StreamedParameters(TrainableModel& model, const ZeroSettings& settings,
                                       std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                                       ThreadPool& pool)
    : model_(&model),
      pool_(&pool),
      weight_memory_(model.layout().num_elements() * dtype_bytes(model.dtype())),
      weights_(flat_view(weight_memory_, model.dtype())),
      window_(gradient_window(zero_layout(model.layout(), 1, 1))),
      gradients_(window_.num_elements * dtype_bytes(DType::kF32)),
      first_range_(first_ranges(model.layout())),
      state_(std::move(optimizer), streamed_ranges(model.layout(), decay_all, window_), weights_,
             flat_view(gradients_, DType::kF32), pool) {
  TESSERA_CHECK(settings.optimizer_in_backward);
  prefault(pool, weight_memory_.as<std::byte>());
  prefault(pool, gradients_.as<std::byte>());
  model.bind_parameters(static_cast<ParameterAccess&>(*this));
}

void StreamedParameters::load(const SafetensorsModel& file, LoadOnce /*once*/,
                              const std::function<void(const LoadProgress&)>& progress) {
  load_masters(file, *model_, weights_, state_, *pool_, progress);
  state_written();
}

WeightUpdate StreamedParameters::begin_pass(bool is_first, bool is_last) {
  TESSERA_CHECK(is_first, "a step has several passes");
  updates_ = is_last && step_.has_value();
  has_begun_ = false;
  squares_ = closed_squares_ = 0;
  not_finite_.clear();
  return {Update::kOverwrite, &squares_};
}

void StreamedParameters::end_pass() {
  if (updates_) step_.reset();
}

void StreamedParameters::begin(const OptimizerStep& step, double max_group_norm, ChangeHook before_change) {
  step_ = step;
  max_group_norm_ = max_group_norm;
  before_change_ = std::move(before_change);
  seconds_ = 0;
}

void StreamedParameters::update(const OptimizerStep& /*step*/, const ChangeHook& /*before_change*/) {
  TESSERA_CHECK(false, "an update after the gradients are gone");
}

std::byte* StreamedParameters::open_weights(int64_t group, WeightUse /*use*/) {
  std::byte* weights = weights_.bytes() + model_->layout().groups()[static_cast<size_t>(group)].begin *
                                              dtype_bytes(weights_.dtype());
  if (packed_forms(group) != nullptr && is_stale_[static_cast<size_t>(group)]) {
    is_stale_[static_cast<size_t>(group)] = false;
    model_->pack_group(group, weights, PackShare());
  }
  return weights;
}

void StreamedParameters::reserve_packed_forms(std::span<const int64_t> bytes_by_group) {
  packed_memory_ = PageBuffer(std::reduce(bytes_by_group.begin(), bytes_by_group.end()));
  packed_forms_.clear();
  std::byte* next = packed_memory_.data();
  for (const int64_t size_bytes : bytes_by_group) {
    packed_forms_.push_back(size_bytes == 0 ? nullptr : next);
    next += size_bytes;
  }
  is_stale_.assign(packed_forms_.size(), true);
}

std::byte* StreamedParameters::packed_forms(int64_t group) {
  return packed_forms_.empty() ? nullptr : packed_forms_[static_cast<size_t>(group)];
}

std::byte* StreamedParameters::open_gradients(int64_t group) { return gradients_of(group).bytes(); }

TensorView StreamedParameters::gradients_of(int64_t group) const {
  const ParameterLayout::Group range = model_->layout().groups()[static_cast<size_t>(group)];
  const int64_t begin = window_.begin[static_cast<size_t>(group)];
  return flat_view(gradients_, DType::kF32).rows(begin, begin + range.end - range.begin);
}

void StreamedParameters::close_gradients(int64_t group) {
  const double group_squares = squares_ - closed_squares_;
  closed_squares_ = squares_;
  if (!std::isfinite(squares_) && not_finite_.empty()) not_finite_ = find_not_finite(group);
  // What follows a gradient that is not finite is left alone.
  if (updates_ && step_ && not_finite_.empty()) update_group(group, group_squares);
}

void StreamedParameters::update_group(int64_t group, double group_squares) {
  const Stopwatch time;
  const ParameterLayout::Group range = model_->layout().groups()[static_cast<size_t>(group)];
  has_begun_ = true;
  if (before_change_) before_change_({range.begin, range.end});
  OptimizerStep step = *step_;
  step.gradient_scale *= clip_factor(std::sqrt(group_squares), max_group_norm_);
  state_.update(first_range_[static_cast<size_t>(group)], first_range_[static_cast<size_t>(group) + 1], step);
  if (!is_stale_.empty()) is_stale_[static_cast<size_t>(group)] = true;
  seconds_ += time.seconds();
}

std::string StreamedParameters::find_not_finite(int64_t group) const {
  const TensorView gradients = gradients_of(group);
  const int64_t begin = model_->layout().groups()[static_cast<size_t>(group)].begin;
  for (const Parameter& parameter : model_->layout().parameters()) {
    if (parameter.group != group) continue;
    const int64_t offset = parameter.offset - begin;
    if (first_not_finite(gradients.rows(offset, offset + parameter.num_elements))) return parameter.name;
  }
  return "a group";
}

void StreamedParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  state_.read(kind, begin, begin, values);
}

void StreamedParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  state_.write(kind, begin, begin, values);
}

void StreamedParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  write([this](int64_t begin, std::span<float> values) { state_.read_master(begin, values); });
}

void StreamedParameters::state_written() { std::fill(is_stale_.begin(), is_stale_.end(), true); }

}  // namespace tessera
