#include "shard/layout/fetch_order.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {

FetchOrder::FetchOrder(const ZeroLayout& layout, const ZeroSettings& settings)
    : head_(std::ssize(layout.groups) - 1) {
  const bool is_sharded = shards_weights(layout, settings);
  int64_t layer_elements = 0, end_elements = 0;
  for (int64_t g = 0; g <= head_; ++g) {
    const int64_t size = layout.groups[static_cast<size_t>(g)].size();
    if (!is_sharded || is_persistent(layout, settings, g)) {
      resident_begin_.push_back(num_elements_);
      num_elements_ += size;
      continue;
    }
    resident_begin_.push_back(-1);
    int64_t& largest = is_end(g) ? end_elements : layer_elements;
    largest = std::max(largest, size);
  }
  num_layer_slots_ = layer_elements > 0 ? num_live_layers(layout, settings) : 0;
  for (int64_t slot = 0; slot < num_layer_slots_; ++slot) {
    slots_.push_back({.begin = num_elements_});
    num_elements_ += layer_elements;
  }
  if (end_elements > 0) slots_.push_back({.begin = num_elements_, .for_ends = true});
  num_elements_ += end_elements;
  fetches_.reserve(slots_.size() + 1);
}

FetchOrder::Slot* FetchOrder::find(int64_t group) {
  const auto found = std::ranges::find(slots_, group, &Slot::group);
  return found == slots_.end() ? nullptr : &*found;
}

size_t FetchOrder::slot_of(int64_t group) const {
  const auto found = std::ranges::find(slots_, group, &Slot::group);
  TESSERA_CHECK(found != slots_.end() && found->is_open, "group {} is not open", group);
  return static_cast<size_t>(found - slots_.begin());
}

void FetchOrder::forget() {
  for (Slot& slot : slots_) slot.group = -1;
}

FetchOrder::Slot& FetchOrder::fetch(int64_t group) {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.for_ends != is_end(group) || slot.is_open) continue;
    if (oldest == nullptr || slot.last_use < oldest->last_use) oldest = &slot;
  }
  TESSERA_CHECK(oldest != nullptr, "no memory for group {}: all {} slots are open", group, slots_.size());
  oldest->group = group;
  fetches_.push_back({static_cast<size_t>(oldest - slots_.data()), group});
  return *oldest;
}

std::span<const Fetch> FetchOrder::open(int64_t group, bool forward) {
  fetches_.clear();
  Slot* slot = find(group);
  if (slot == nullptr) slot = &fetch(group);
  TESSERA_CHECK(!slot->is_open, "group {} is open already", group);
  slot->is_open = true;
  slot->last_use = ++clock_;
  fetch_ahead(group, forward);
  return fetches_;
}

void FetchOrder::fetch_ahead(int64_t group, bool forward) {
  for (int64_t i = 1; i < num_layer_slots_; ++i) {
    const int64_t next = forward ? group + i : group - i;
    if (next < 1 || next >= head_ || is_resident(next)) continue;
    Slot* slot = find(next);
    if (slot == nullptr) slot = &fetch(next);
    slot->last_use = ++clock_;  // keeps it from being dropped before use
  }
  const bool is_near_head = group >= std::max<int64_t>(1, head_ - 2) && group < head_;
  if (forward && is_near_head && !is_resident(head_) && find(head_) == nullptr)
    fetch(head_).last_use = ++clock_;
}

}  // namespace tessera
