#include "shard/parameters/device_parameters.h"

#include <algorithm>
#include <mutex>

#include "shard/first_not_finite.h"
#include "shard/parameters/parameter_ranges.h"

namespace tessera {
namespace {

// Elements that pass through the host at a time.
constexpr int64_t kPiece = int64_t{1} << 22;

template <typename T>
void to_host(TensorView from, int64_t begin, std::span<T> to) {
  const int64_t count = std::ssize(to);
  copy(from.rows(begin, begin + count), TensorView(to.data(), from.dtype(), {count}));
}

template <typename T>
void to_device(std::span<const T> from, TensorView to, int64_t begin) {
  const int64_t count = std::ssize(from);
  copy(ConstTensorView(from.data(), to.dtype(), {count}), to.rows(begin, begin + count));
}

}  // namespace

DeviceParameters::DeviceParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer,
                                   bool decay_all, ThreadPool& pool)
    : model_(&model),
      pool_(&pool),
      ranges_(parameter_ranges(model.layout(), decay_all)),
      first_range_(first_ranges(model.layout())),
      weights_(model.device(), model.dtype(), model.layout().num_elements()),
      gradients_(model.device(), DType::kF32, model.layout().num_elements()),
      remainders_(model.device(), DType::kI16, has_remainders() ? model.layout().num_elements() : 0) {
  TESSERA_CHECK(is_on_cards(optimizer->state_tensors(), model.dtype()),
                "an optimizer that the device does not have");
  optimizer_.reset(static_cast<const AdamW*>(optimizer.release()));
  for (const StateTensor& tensor : optimizer_->state_tensors()) {
    moments_.emplace_back(model.device(), tensor.dtype, model.layout().num_elements());
  }
  model.bind_parameters(weights_.view, gradients_.view);
}

void DeviceParameters::load(const SafetensorsModel& file, LoadOnce /*once*/,
                            const std::function<void(const LoadProgress&)>& progress) {
  WeightReader reader(file, model_->config(), model_->layout(), *pool_, progress);
  reader.expect_all();
  has_remainders() ? load_split(reader) : load_by_groups(reader, weights_.view);
  state_written();
}

// Weights and remainders of a group pass through the host's memory together. Without float32 values in the
// file there are no remainders, and the device has zeros from the beginning.
void DeviceParameters::load_split(WeightReader& reader) {
  const auto& groups = model_->layout().groups();
  std::vector<int16_t> remainders;
  fill_by_parts(group_begins(model_->layout(), DType::kBF16), weights_.bytes(),
                [&](int64_t index, std::byte* buffer) {
                  const auto [begin, end] = groups[static_cast<size_t>(index)];
                  auto* const to = reinterpret_cast<bf16*>(buffer);
                  const auto size = static_cast<size_t>(end - begin);
                  remainders.clear();
                  std::once_flag has_remainders;
                  const WeightSink sink = [&, first = begin](int64_t at, std::span<const float> values) {
                    std::call_once(has_remainders, [&] { remainders.resize(size); });
                    for (size_t i = 0; i < values.size(); ++i) {
                      const size_t place = static_cast<size_t>(at - first) + i;
                      to[place] = master_weight(values[i]);
                      remainders[place] = master_remainder(values[i]);
                    }
                  };
                  reader.read({begin, end}, sink, [&, first = begin](int64_t at, int64_t count) {
                    return std::span(to + (at - first), static_cast<size_t>(count));
                  });
                  if (has_updates_) remainders.resize(size);
                  to_device(std::span<const int16_t>(remainders), remainders_.view, begin);
                });
}

void DeviceParameters::write_masters(int64_t begin, std::span<const bf16> weights,
                                     std::span<const int16_t> remainders) {
  has_updates_ = true;
  to_device(weights, weights_.view, begin);
  to_device(remainders, remainders_.view, begin);
}

// The products of the last pass sum the squares of gradient elements.
WeightUpdate DeviceParameters::begin_pass(bool is_first, bool is_last) {
  if (is_first) squares_ = 0;
  return {is_first ? Update::kOverwrite : Update::kAdd, is_last ? &squares_ : nullptr};
}

std::string DeviceParameters::not_finite_gradient() const {
  return first_not_finite(model_->layout(), gradients_.view);
}

void DeviceParameters::update(const OptimizerStep& step, const ChangeHook& before_change) {
  has_updates_ = true;
  const std::vector<ParameterLayout::Group>& groups = model_->layout().groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (before_change) before_change({groups[g].begin, groups[g].end});
    for (int64_t i = first_range_[g]; i < first_range_[g + 1]; ++i) {
      const ParameterRange& range = ranges_[static_cast<size_t>(i)];
      const int64_t begin = range.begin, end = begin + range.count;
      model_->ops().adamw(weights_.view.rows(begin, end),
                          has_remainders() ? remainders_.view.rows(begin, end) : TensorView(),
                          gradients_.view.rows(begin, end), moments_[0].view.rows(begin, end),
                          moments_[1].view.rows(begin, end), range.first_element,
                          optimizer_->scalars(range.weight_decay, step));
    }
  }
  model_->weights_changed();
}

// BF16 values pass through the host's memory.
void DeviceParameters::read_moment(TensorView moment, int64_t begin, std::span<float> values) {
  if (moment.dtype() == DType::kF32) return to_host(moment, begin, values);
  std::vector<bf16> stored(std::min(values.size(), static_cast<size_t>(kPiece)));
  while (!values.empty()) {
    const size_t count = std::min(values.size(), stored.size());
    to_host(moment, begin, std::span(stored).first(count));
    std::transform(stored.begin(), stored.begin() + static_cast<int64_t>(count), values.begin(),
                   [](bf16 value) { return to_float(value); });
    values = values.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

void DeviceParameters::write_moment(TensorView moment, int64_t begin, std::span<const float> values) {
  if (moment.dtype() == DType::kF32) return to_device(values, moment, begin);
  std::vector<bf16> stored(values.size());
  std::ranges::transform(values, stored.begin(), [](float value) { return to_bf16(value); });
  to_device(std::span<const bf16>(stored), moment, begin);
}

void DeviceParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  if (kind != StateKind::kMaster) return read_moment(moments_[tensor_index(kind)].view, begin, values);
  if (!has_remainders()) return to_host(weights_.view, begin, values);
  std::vector<bf16> weights(std::min(values.size(), static_cast<size_t>(kPiece)));
  std::vector<int16_t> remainders(weights.size());
  while (!values.empty()) {
    const size_t count = std::min(values.size(), weights.size());
    to_host(weights_.view, begin, std::span(weights).first(count));
    to_host(remainders_.view, begin, std::span(remainders).first(count));
    for (size_t i = 0; i < count; ++i) values[i] = join_master(weights[i], remainders[i]);
    values = values.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

void DeviceParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  if (kind != StateKind::kMaster) return write_moment(moments_[tensor_index(kind)].view, begin, values);
  if (!has_remainders()) return to_device(values, weights_.view, begin);
  std::vector<bf16> weights(values.size());
  std::vector<int16_t> remainders(values.size());
  std::transform(values.begin(), values.end(), weights.begin(), master_weight);
  std::transform(values.begin(), values.end(), remainders.begin(), master_remainder);
  write_masters(begin, weights, remainders);
}

void DeviceParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  write([this](int64_t begin, std::span<float> values) { read_state(StateKind::kMaster, begin, values); });
}

}  // namespace tessera
