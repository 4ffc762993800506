#include "shard/state/device_state.h"

#include <algorithm>
#include <mutex>
#include <utility>

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

DeviceState::DeviceState(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer,
                         std::vector<ParameterRange> ranges, TensorView weights, ConstTensorView gradients)
    : model_(&model),
      ranges_(std::move(ranges)),
      weights_(weights),
      gradients_(gradients),
      remainders_(model.device(), DType::kI16, has_remainders() ? weights.num_elements() : 0) {
  TESSERA_CHECK(is_on_cards(optimizer->state_tensors(), weights.dtype()),
                "an optimizer that the device does not have");
  optimizer_.reset(static_cast<const RuleOptimizer<AdamWRule>*>(optimizer.release()));
  for (const StateTensor& tensor : optimizer_->state_tensors()) {
    moments_.emplace_back(model.device(), tensor.dtype, weights.num_elements());
  }
}

void DeviceState::load(WeightReader& reader) {
  reader.expect_all();
  has_remainders() ? load_split(reader) : load_by_groups(reader, weights_);
}

// Weights and remainders of a group pass through the host's memory together. Without float32 values in the
// file there are no remainders, and the device has zeros from the beginning.
void DeviceState::load_split(WeightReader& reader) {
  const auto& groups = model_->layout().groups();
  const TensorView weight_bytes(weights_.address(), DType::kU8, {weights_.size_bytes()}, model_->device());
  std::vector<int16_t> remainders;
  fill_by_parts(group_begins(model_->layout(), DType::kBF16), weight_bytes,
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

void DeviceState::write_masters(int64_t begin, std::span<const bf16> weights,
                                std::span<const int16_t> remainders) {
  has_updates_ = true;
  to_device(weights, weights_, begin);
  to_device(remainders, remainders_.view, begin);
}

void DeviceState::update(int64_t first, int64_t last, const OptimizerStep& step) {
  has_updates_ = true;
  for (int64_t i = first; i < last; ++i) {
    const ParameterRange& range = ranges_[static_cast<size_t>(i)];
    const int64_t begin = range.state_begin, end = begin + range.count;
    model_->ops().adamw(weights_.rows(range.begin, range.begin + range.count),
                        has_remainders() ? remainders_.view.rows(begin, end) : TensorView(),
                        gradients_.rows(range.gradient_begin, range.gradient_begin + range.count),
                        moments_[0].view.rows(begin, end), moments_[1].view.rows(begin, end),
                        range.first_element, optimizer_->scalars(range.weight_decay, step));
  }
}

// BF16 values pass through the host's memory.
void DeviceState::read_moment(TensorView moment, int64_t begin, std::span<float> values) {
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

void DeviceState::write_moment(TensorView moment, int64_t begin, std::span<const float> values) {
  if (moment.dtype() == DType::kF32) return to_device(values, moment, begin);
  std::vector<bf16> stored(values.size());
  std::ranges::transform(values, stored.begin(), [](float value) { return to_bf16(value); });
  to_device(std::span<const bf16>(stored), moment, begin);
}

// One rank has the state of an element where it has its weight.
void DeviceState::read(StateKind kind, int64_t begin, int64_t state_begin, std::span<float> values) const {
  if (kind != StateKind::kMaster) return read_moment(moments_[tensor_index(kind)].view, state_begin, values);
  if (!has_remainders()) return to_host(weights_, begin, values);
  std::vector<bf16> weights(std::min(values.size(), static_cast<size_t>(kPiece)));
  std::vector<int16_t> remainders(weights.size());
  while (!values.empty()) {
    const size_t count = std::min(values.size(), weights.size());
    to_host(weights_, begin, std::span(weights).first(count));
    to_host(remainders_.view, begin, std::span(remainders).first(count));
    for (size_t i = 0; i < count; ++i) values[i] = join_master(weights[i], remainders[i]);
    values = values.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

void DeviceState::write(StateKind kind, int64_t begin, int64_t state_begin, std::span<const float> values) {
  if (kind != StateKind::kMaster) return write_moment(moments_[tensor_index(kind)].view, state_begin, values);
  if (!has_remainders()) return to_device(values, weights_, begin);
  std::vector<bf16> weights(values.size());
  std::vector<int16_t> remainders(values.size());
  std::transform(values.begin(), values.end(), weights.begin(), master_weight);
  std::transform(values.begin(), values.end(), remainders.begin(), master_remainder);
  write_masters(begin, weights, remainders);
}

}  // namespace tessera
