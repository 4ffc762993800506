#include "shard/parameters/offloaded_parameters.h"

#include <algorithm>
#include <utility>

#include "base/stopwatch.h"
#include "platform/prefault.h"
#include "shard/first_not_finite.h"
#include "shard/model_places.h"
#include "shard/parameters/parameter_ranges.h"

namespace tessera {
namespace {

// Those of the parameters, cut to what a slot of the ring takes, with their gradients in the slots in turn.
std::vector<ParameterRange> ranges_in_ring(const ParameterLayout& layout, bool decay_all,
                                           const GradientRing& ring) {
  std::vector<ParameterRange> cut;
  for (const ParameterRange& whole : parameter_ranges(layout, decay_all)) {
    for (int64_t first = 0; first < whole.count; first += ring.slot_elements) {
      ParameterRange range = whole;
      range.begin = range.state_begin = range.first_element = whole.begin + first;
      range.count = std::min(ring.slot_elements, whole.count - first);
      range.gradient_begin = std::ssize(cut) % ring.num_slots * ring.slot_elements;
      cut.push_back(range);
    }
  }
  return cut;
}

}  // namespace

OffloadedParameters::OffloadedParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer,
                                         bool decay_all, ThreadPool& pool, int64_t ring_elements)
    : model_(&model),
      pool_(&pool),
      slots_(gradient_ring(zero_layout(model.layout(), 1, 1), optimizer->state_tensors(), ring_elements)),
      ranges_(ranges_in_ring(model.layout(), decay_all, slots_)),
      first_range_(first_ranges(model.layout(), ranges_)),
      weights_(model.device().allocate(model.layout().num_elements() * dtype_bytes(model.dtype()))),
      gradients_(model.device().allocate(model.layout().num_elements() * dtype_bytes(DType::kF32))),
      device_weights_(weights_.view(model.dtype(), {model.layout().num_elements()})),
      device_gradients_(gradients_.view(DType::kF32, {model.layout().num_elements()})),
      host_weights_(host_device().allocate(weights_.size_bytes())),
      ring_(host_device().allocate(slots_.num_elements() * dtype_bytes(DType::kF32))),
      state_(std::move(optimizer), ranges_, host_weights(), ring(), pool, model.layout().num_elements()),
      to_host_(model.device().make_copy_queue()),
      to_device_(model.device().make_copy_queue()),
      fetched_(static_cast<size_t>(slots_.num_slots)),
      sent_(model.layout().groups().size()) {
  for (const DeviceBuffer* memory : {&host_weights_, &ring_}) {
    prefault(pool, memory->span());
    pins_.push_back(model.device().pin(memory->span()));
  }
  model.bind_parameters(static_cast<ParameterAccess&>(*this));
}

void OffloadedParameters::load(const SafetensorsModel& file, LoadOnce /*once*/,
                               const std::function<void(const LoadProgress&)>& progress) {
  load_masters(file, *model_, host_weights(), state_, *pool_, progress);
  state_written();
}

void OffloadedParameters::reserve_packed_forms(std::span<const int64_t> /*bytes_by_group*/) {
  TESSERA_CHECK(false, "packed forms on {}", model_->device().name());
}

std::byte* OffloadedParameters::open_weights(int64_t group, WeightUse /*use*/) {
  update_through(static_cast<size_t>(group));
  to_device_->hold_device(std::exchange(sent_[static_cast<size_t>(group)], 0));
  const int64_t begin = model_->layout().groups()[static_cast<size_t>(group)].begin;
  return device_weights_.address() + begin * dtype_bytes(model_->dtype());
}

std::byte* OffloadedParameters::open_gradients(int64_t group) {
  TESSERA_CHECK(!update_, "gradients of an update under way");
  const int64_t begin = model_->layout().groups()[static_cast<size_t>(group)].begin;
  return device_gradients_.address() + begin * dtype_bytes(DType::kF32);
}

// The products of the last pass sum the squares of gradient elements.
WeightUpdate OffloadedParameters::begin_pass(bool is_first, bool is_last) {
  if (is_first) squares_ = 0;
  return {is_first ? Update::kOverwrite : Update::kAdd, is_last ? &squares_ : nullptr};
}

std::string OffloadedParameters::not_finite_gradient() const {
  return first_not_finite(model_->layout(), device_gradients_);
}

void OffloadedParameters::update(const OptimizerStep& step, const ChangeHook& before_change) {
  update_ = {.step = step, .before_change = before_change};
  to_host_->follow_device();
  to_device_->follow_device();
  fetch_gradients(std::ssize(fetched_));
}

void OffloadedParameters::fetch_gradients(int64_t end_range) {
  for (int64_t& i = update_->num_fetched; i < std::min(end_range, std::ssize(ranges_)); ++i) {
    const ParameterRange& range = ranges_[static_cast<size_t>(i)];
    fetched_[static_cast<size_t>(i % std::ssize(fetched_))] =
        to_host_->copy(device_gradients_.rows(range.begin, range.begin + range.count),
                       ring().rows(range.gradient_begin, range.gradient_begin + range.count));
  }
}

void OffloadedParameters::update_through(size_t group) {
  while (update_ && update_->next_group <= group) {
    update_group(update_->next_group++);
    if (update_->next_group == sent_.size()) update_.reset();
  }
}

void OffloadedParameters::update_group(size_t group) {
  const Stopwatch time;
  const ParameterLayout::Group& elements = model_->layout().groups()[group];
  if (update_->before_change) update_->before_change({elements.begin, elements.end});
  const int64_t num_slots = std::ssize(fetched_);
  for (int64_t i = first_range_[group]; i < first_range_[group + 1]; ++i) {
    const ParameterRange& range = ranges_[static_cast<size_t>(i)];
    to_host_->wait(fetched_[static_cast<size_t>(i % num_slots)]);
    state_.update(i, i + 1, update_->step);
    fetch_gradients(i + 1 + num_slots);
    sent_[group] = weights_to_device(range.begin, range.begin + range.count);
  }
  seconds_ += time.seconds();
}

CopyQueue::Mark OffloadedParameters::weights_to_device(int64_t begin, int64_t end) {
  return to_device_->copy(host_weights().rows(begin, end), device_weights_.rows(begin, end));
}

// A checkpoint may still be read from elements that an update under way has not reached.
void OffloadedParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  state_.read(kind, begin, begin, values);
}

void OffloadedParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  TESSERA_CHECK(!update_, "state of an update under way");
  state_.write(kind, begin, begin, values);
}

void OffloadedParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  finish_update();
  write([this](int64_t begin, std::span<float> values) { state_.read_master(begin, values); });
}

void OffloadedParameters::state_written() {
  to_device_->follow_device();
  to_device_->hold_device(weights_to_device(0, device_weights_.num_elements()));
  model_->weights_changed();
}

}  // namespace tessera
