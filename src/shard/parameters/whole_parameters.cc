#include "shard/parameters/whole_parameters.h"

#include "checkpoint/checkpoint_files.h"
#include "platform/prefault.h"
#include "shard/first_not_finite.h"
#include "shard/parameters/parameter_ranges.h"

namespace tessera {

WholeParameters::WholeParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer,
                                 bool decay_all, ThreadPool& pool,
                                 const std::optional<StateFileSettings>& state_file)
    : model_(&model),
      pool_(&pool),
      weights_(model.layout().num_elements() * dtype_bytes(model.dtype())),
      gradients_(model.layout().num_elements() * dtype_bytes(DType::kF32)),
      first_range_(first_ranges(model.layout())),
      state_(std::move(optimizer), parameter_ranges(model.layout(), decay_all), weights(), gradients(), pool,
             {}, state_file) {
  for (const PageBuffer* memory : {&weights_, &gradients_}) prefault(pool, memory->as<std::byte>());
  model.bind_parameters(weights(), gradients());
}

void WholeParameters::load(const SafetensorsModel& file, LoadOnce /*once*/,
                           const std::function<void(const LoadProgress&)>& progress) {
  load_masters(file, *model_, weights(), state_, *pool_, progress);
  state_written();
}

// The products of the last pass sum the squares of gradient elements as they write them.
WeightUpdate WholeParameters::begin_pass(bool is_first, bool is_last) {
  if (is_first) squares_ = 0;
  return {is_first ? Update::kOverwrite : Update::kAdd, is_last ? &squares_ : nullptr};
}

std::string WholeParameters::not_finite_gradient() const {
  return first_not_finite(model_->layout(), gradients());
}

void WholeParameters::update(const OptimizerStep& step, const ChangeHook& before_change) {
  const std::vector<ParameterLayout::Group>& groups = model_->layout().groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const ParameterLayout::Group& group = groups[g];
    if (before_change) before_change({group.begin, group.end});
    const size_t next = (g + 1) % groups.size();
    state_.announce(first_range_[next], first_range_[next + 1]);
    state_.update(first_range_[g], first_range_[g + 1], step);
  }
  model_->weights_changed();
}

void WholeParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  state_.read(kind, begin, begin, values);
}

StoredSource WholeParameters::stored_source() const {
  return [this](size_t part, DType dtype, int64_t begin, int64_t count, const StoredBody& body) {
    if (part != StoredParts::kModel)
      return state_.read_stored(StoredParts::kind(part), dtype, begin, count, body);
    if (dtype != model_->dtype()) return false;
    body(0, bytes_of(weights().rows(begin, begin + count)), nullptr);
    return true;
  };
}

void WholeParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  state_.write(kind, begin, begin, values);
}

void WholeParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  write([this](int64_t begin, std::span<float> values) { state_.read_master(begin, values); });
}

void WholeParameters::state_written() { model_->weights_changed(); }

}  // namespace tessera
