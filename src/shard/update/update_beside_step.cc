#include "shard/update/update_beside_step.h"

#include <algorithm>

#include "base/clock.h"
#include "platform/prefault.h"

namespace tessera {

RingOfGradients::RingOfGradients(Device& device, const GradientRing& slots, ThreadPool& pool)
    : slots_(slots), buffer_(host_device().allocate(slots.num_elements() * dtype_bytes(DType::kF32))) {
  prefault(pool, buffer_.span());
  pin_ = device.pin(buffer_.span());
}

std::vector<ParameterRange> RingOfGradients::cut(const std::vector<ParameterRange>& ranges) const {
  std::vector<ParameterRange> parts;
  for (const ParameterRange& whole : ranges) {
    for (int64_t first = 0; first < whole.count; first += slots_.slot_elements) {
      ParameterRange part = whole;
      part.begin += first;
      part.state_begin += first;
      part.first_element += first;
      part.count = std::min(slots_.slot_elements, whole.count - first);
      part.gradient_begin = std::ssize(parts) % slots_.num_slots * slots_.slot_elements;
      parts.push_back(part);
    }
  }
  return parts;
}

UpdateBesideStep::UpdateBesideStep(GroupUpdate group_update, HostUpdatedWeights& weights,
                                   ConstTensorView gradients, RingOfGradients& ring,
                                   const std::vector<ParameterRange>& ranges)
    : group_update_(group_update),
      weights_(&weights),
      gradients_(gradients),
      ring_(&ring),
      ranges_(ranges),
      to_host_(weights.device().make_copy_queue()),
      fetched_(static_cast<size_t>(ring.num_slots())) {}

void UpdateBesideStep::update(const OptimizerStep& step, const ChangeHook& before_change) {
  update_ = {.step = step, .before_change = before_change};
  to_host_->follow_device();
  weights_->begin_copies();
  fetch_gradients(ring_->num_slots());
}

void UpdateBesideStep::fetch_gradients(int64_t end_range) {
  for (int64_t& i = update_->num_fetched; i < std::min(end_range, std::ssize(ranges_)); ++i) {
    const ParameterRange& range = ranges_[static_cast<size_t>(i)];
    const ConstTensorView on_device = gradients_.rows(range.begin, range.begin + range.count);
    fetched_[static_cast<size_t>(i % ring_->num_slots())] = to_host_->copy(
        on_device, ring_->memory().rows(range.gradient_begin, range.gradient_begin + range.count));
  }
}

void UpdateBesideStep::update_through(int64_t group) {
  while (update_ && update_->next_group <= group) {
    update_group(update_->next_group++);
    if (update_->next_group == group_update_.num_groups()) update_.reset();
  }
}

void UpdateBesideStep::update_group(int64_t group) {
  const Stopwatch time;
  const Part elements = group_update_.plan.group(group);
  if (update_->before_change) update_->before_change({elements.begin, elements.end});
  const int64_t end = group_update_.first_range[static_cast<size_t>(group + 1)];
  for (int64_t i = group_update_.first_range[static_cast<size_t>(group)]; i < end; ++i) {
    const ParameterRange& range = ranges_[static_cast<size_t>(i)];
    to_host_->wait(fetched_[static_cast<size_t>(i % ring_->num_slots())]);
    group_update_.state.update(i, i + 1, update_->step);
    fetch_gradients(i + 1 + ring_->num_slots());
    weights_->copy(group, range.begin, range.begin + range.count);
  }
  seconds_ += time.seconds();
}

}  // namespace tessera
