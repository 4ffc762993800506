#include "shard/parameters/streamed_parameters.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "checkpoint/checkpoint_files.h"
#include "optim/clip.h"
#include "platform/prefault.h"
#include "shard/first_not_finite.h"
#include "shard/model_places.h"
#include "shard/parameters/parameter_ranges.h"

namespace tessera {
namespace {

// As those of whole parameters, with weights and gradients where they are while their group is open.
std::vector<ParameterRange> streamed_ranges(const ParameterLayout& layout, bool decay_all,
                                            const StreamedWeights& weights, const GradientWindow& window) {
  std::vector<ParameterRange> ranges = parameter_ranges(layout, decay_all);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto group = static_cast<size_t>(layout.parameters()[i].group);
    const int64_t begin = layout.groups()[group].begin;
    ranges[i].begin += weights.begin(static_cast<int64_t>(group)) - begin;
    ranges[i].gradient_begin += window.begin[group] - begin;
  }
  return ranges;
}

TensorView flat_view(const PageBuffer& memory, DType dtype) {
  return {memory.data(), dtype, {memory.size_bytes() / dtype_bytes(dtype)}};
}

}  // namespace

StreamedParameters::StreamedParameters(TrainableModel& model, const ZeroSettings& settings,
                                       std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                                       ThreadPool& pool, const std::optional<StateFileSettings>& state_file)
    : model_(&model),
      pool_(&pool),
      weights_(model.layout(), model.dtype(), settings.weight_folder),
      window_(gradient_window(zero_layout(model.layout(), 1, 1))),
      gradients_(window_.num_elements * dtype_bytes(DType::kF32)),
      first_range_(first_ranges(model.layout())),
      state_(std::move(optimizer), streamed_ranges(model.layout(), decay_all, weights_, window_),
             weights_.memory(), flat_view(gradients_, DType::kF32), pool, model.layout().num_elements(),
             state_file) {
  TESSERA_CHECK(settings.optimizer_in_backward);
  const TensorView weights = weights_.memory();
  prefault(pool, {weights.bytes(), static_cast<size_t>(weights.size_bytes())});
  prefault(pool, gradients_.as<std::byte>());
  ParameterAccess& of_host = *this;
  if (!settings.parameters_on_host) {
    model.bind_parameters(of_host);
    return;
  }
  device_window_.emplace(model.device(), of_host, trained_window(model),
                         /*opens_ahead=*/!settings.weight_folder);
  device_window_->pin({weights.bytes(), static_cast<size_t>(weights.size_bytes())});
  device_window_->pin(gradients_.as<std::byte>());
  model.bind_parameters(*device_window_);
}

void StreamedParameters::load(const SafetensorsModel& file, LoadOnce /*once*/,
                              const std::function<void(const LoadProgress&)>& progress) {
  LoadOptions options;
  options.progress = progress;
  const WeightSink sink = [this](int64_t begin, std::span<const float> values) {
    write_state(StateKind::kMaster, begin, values);
  };
  load_weights(file, model_->config(), model_->layout(), sink, *pool_, options);
  state_written();
}

WeightUpdate StreamedParameters::begin_pass(bool is_first, bool is_last) {
  TESSERA_CHECK(is_first, "a step has several passes");
  updates_ = is_last && step_.has_value();
  has_begun_ = false;
  squares_ = closed_squares_ = 0;
  not_finite_.clear();
  // On a device, asking for the squares would make the host wait for every product.
  return {Update::kOverwrite, device_window_ ? nullptr : &squares_};
}

void StreamedParameters::end_pass() {
  if (device_window_) {
    device_window_->finish_gradients();
    device_window_->weights_changed();
  }
  if (!updates_) return;
  weights_.finish_updates();
  step_.reset();
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

std::byte* StreamedParameters::open_weights(int64_t group, WeightUse use) {
  std::byte* weights = weights_.open(group, use == WeightUse::kForward);
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
  if (device_window_) {
    const auto first = static_cast<size_t>(group);
    for (int64_t range = first_range_[first]; range < first_range_[first + 1]; ++range) {
      squares_ += state_.gradient_squares(range);
    }
  }
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
  const auto first_range = [&](int64_t of) { return first_range_[static_cast<size_t>(of)]; };
  const int64_t num_groups = std::ssize(first_range_) - 1;
  const int64_t next = (group + num_groups - 1) % num_groups;
  state_.announce(first_range(next), first_range(next + 1));
  state_.update(first_range(group), first_range(group + 1), step);
  weights_.updated(group);
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

template <typename Body>
void StreamedParameters::for_each_piece(int64_t begin, int64_t count, const Body& body) const {
  const std::vector<ParameterLayout::Group>& groups = model_->layout().groups();
  for (int64_t g = 0; g < std::ssize(groups); ++g) {
    const int64_t last = std::min(begin + count, groups[static_cast<size_t>(g)].end);
    for (int64_t first = std::max(begin, groups[static_cast<size_t>(g)].begin); first < last;
         first += kStagedElements) {
      body(g, first, std::min(kStagedElements, last - first));
    }
  }
}

int64_t StreamedParameters::weight_index(int64_t group, int64_t element) const {
  return weights_.begin(group) + element - model_->layout().groups()[static_cast<size_t>(group)].begin;
}

void StreamedParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  for_each_piece(begin, std::ssize(values), [&](int64_t group, int64_t first, int64_t count) {
    const auto piece = values.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(count));
    if (kind != StateKind::kMaster || !weights_.is_in_file(group)) {
      state_.read(kind, kind == StateKind::kMaster ? weight_index(group, first) : 0, first, piece);
      return;
    }
    const std::lock_guard lock(staging_);
    weights_.stage(group, first, count);
    state_.read(kind, weights_.staging_begin(), first, piece);
  });
}

StoredSource StreamedParameters::stored_source() const {
  return [this](size_t part, DType dtype, int64_t begin, int64_t count, const StoredBody& body) {
    if (part != StoredParts::kModel)
      return state_.read_stored(StoredParts::kind(part), dtype, begin, count, body);
    if (dtype != model_->dtype()) return false;
    for_each_piece(begin, count, [&](int64_t group, int64_t first, int64_t size) {
      if (!weights_.is_in_file(group)) {
        const int64_t at = weight_index(group, first);
        body(first - begin, bytes_of(weights_.memory().rows(at, at + size)), nullptr);
        return;
      }
      const std::lock_guard lock(staging_);
      weights_.stage(group, first, size);
      const int64_t at = weights_.staging_begin();
      const FileBytes in_file = weights_.in_file(group, first, size);
      body(first - begin, bytes_of(weights_.memory().rows(at, at + size)), &in_file);
    });
    return true;
  };
}

void StreamedParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  for_each_piece(begin, std::ssize(values), [&](int64_t group, int64_t first, int64_t count) {
    const auto piece = values.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(count));
    if (kind != StateKind::kMaster || !weights_.is_in_file(group)) {
      state_.write(kind, kind == StateKind::kMaster ? weight_index(group, first) : 0, first, piece);
      return;
    }
    const std::lock_guard lock(staging_);
    state_.write(kind, weights_.staging_begin(), first, piece);
    weights_.write_staged(group, first, count);
  });
}

void StreamedParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  write([this](int64_t begin, std::span<float> values) { read_state(StateKind::kMaster, begin, values); });
}

void StreamedParameters::state_written() {
  weights_.written();
  if (device_window_) device_window_->weights_changed();
  std::fill(is_stale_.begin(), is_stale_.end(), true);
}

}  // namespace tessera
