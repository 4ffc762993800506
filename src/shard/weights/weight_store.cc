#include "shard/weights/weight_store.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {
namespace {

// Channels of the node's counters.
constexpr int64_t kResident = 0;        // stamp() of the last group whose parts on this rank's rail are here
constexpr int64_t kGathered = 1;        // number of the last gather whose parts on this rank's rail are here
constexpr int64_t kClosedGathered = 2;  // number of gathered groups closed
constexpr int64_t kNumWeightChannels = 3;

constexpr const char* kWeights = "weights";

}  // namespace

WeightStore::WeightStore(const ZeroLayout& layout, const ZeroSettings& settings, const ShardPlan& plan,
                         Communicator& comm, ThreadPool& pool)
    : settings_(settings),
      plan_(plan),
      comm_(&comm),
      element_bytes_(dtype_bytes(settings.weight_dtype)),
      sharded_(shards_weights(layout, settings)),
      fetches_(layout.num_nodes > 1 && settings.stage > 0) {
  TESSERA_CHECK(!settings.quantized_weights || settings.weight_dtype == DType::kBF16, "weights are {}",
                dtype_name(settings.weight_dtype));
  const auto num_groups = static_cast<size_t>(plan.num_groups());
  resident_data_.resize(num_groups);
  owned_begin_.resize(num_groups);
  seen_version_.resize(num_groups);
  counters_ = comm.node().make_counters("weights", kNumWeightChannels);
  if (!sharded_) {
    weights_ = comm.node().allocate("weights", plan.group(plan.num_groups() - 1).end * element_bytes_);
    comm.node().prefault(weights_, pool);
    for (size_t g = 0; g < num_groups; ++g) {
      const Part group = plan.group(static_cast<int64_t>(g));
      resident_data_[g] = weights_.data() + group.begin * element_bytes_;
      owned_begin_[g] = group.begin;
    }
    return;
  }

  const int node = comm.world().node_rank;
  int64_t end = 0;
  for (size_t g = 0; g < num_groups; ++g) {
    owned_begin_[g] = end;
    end += plan.node_part(static_cast<int64_t>(g), node).size();
  }
  weights_ = comm.node().allocate("own weights", std::max<int64_t>(end, 1) * element_bytes_);
  comm.node().prefault(weights_, pool);

  // First the groups that stay, then the slots.
  int64_t layer_elements = 0, end_elements = 0, live_elements = 0;
  std::vector<int64_t> resident_begin(num_groups, -1);
  for (int64_t g = 0; g < plan.num_groups(); ++g) {
    const int64_t size = plan.group(g).size();
    if (is_persistent(layout, settings, g)) {
      resident_begin[static_cast<size_t>(g)] = live_elements;
      live_elements += size;
    } else {
      int64_t& largest = is_end(g) ? end_elements : layer_elements;
      largest = std::max(largest, size);
    }
  }
  const int64_t num_layer_slots = layer_elements > 0 ? num_live_layers(layout, settings) : 0;
  const int64_t slots_begin = live_elements;
  live_elements += num_layer_slots * layer_elements + end_elements;
  live_ = comm.node().allocate("live weights", std::max<int64_t>(live_elements, 1) * element_bytes_);
  comm.node().prefault(live_, pool);
  for (size_t g = 0; g < num_groups; ++g) {
    if (resident_begin[g] >= 0) resident_data_[g] = live_.data() + resident_begin[g] * element_bytes_;
  }
  const auto add_slot = [&](int64_t begin, bool for_ends) {
    slots_.emplace_back();
    slots_.back().data = live_.data() + begin * element_bytes_;
    slots_.back().for_ends = for_ends;
  };
  for (int64_t i = 0; i < num_layer_slots; ++i) add_slot(slots_begin + i * layer_elements, false);
  if (end_elements > 0) add_slot(slots_begin + num_layer_slots * layer_elements, true);
}

TensorView WeightStore::owned() const {
  return {weights_.data(), settings_.weight_dtype, {weights_.size_bytes() / element_bytes_}};
}

int64_t WeightStore::owned_index(int64_t group, int64_t element) const {
  const int64_t first =
      sharded_ ? plan_.node_part(group, comm_->world().node_rank).begin : plan_.group(group).begin;
  return owned_begin_[static_cast<size_t>(group)] + element - first;
}

// Increases with every update of every group.
uint64_t WeightStore::stamp(int64_t group) const {
  return version_ * static_cast<uint64_t>(plan_.num_groups()) + static_cast<uint64_t>(group) + 1;
}

void WeightStore::loaded() {
  TESSERA_CHECK(!sharded_ && !fetches_rounded(), "gathered weights are updated, not loaded");
  comm_->node().barrier({"loaded weights"});
}

void WeightStore::updated(int64_t group) {
  if (group == 0) ++version_;
  if (!is_resident(group)) return;
  if (!fetches_) {
    counters_.publish(kResident, stamp(group));
    return;
  }
  std::byte* data = resident_data_[static_cast<size_t>(group)];
  if (sharded_) copy_own_part(group, data);
  start_fetch(group, data, kResident, stamp(group));
}

void WeightStore::copy_own_part(int64_t group, std::byte* to) const {
  const Part part = plan_.part(group, comm_->world().rank);
  if (part.size() == 0) return;
  std::memcpy(to + (part.begin - plan_.group(group).begin) * element_bytes_,
              weights_.data() + owned_index(group, part.begin) * element_bytes_,
              static_cast<size_t>(part.size() * element_bytes_));
}

void WeightStore::start_fetch(int64_t group, std::byte* data, int64_t channel, uint64_t value) {
  const Part range = plan_.group(group);
  const int64_t unit = settings_.quantized_weights ? 1 : element_bytes_;
  parts_.clear();
  for (int node = 0; node < plan_.num_nodes(); ++node) {
    const Part part = plan_.rail_part(group, node, comm_->world().local_rank);
    parts_.push_back({(part.begin - range.begin) * unit, (part.end - range.begin) * unit});
  }
  const auto size = static_cast<size_t>(range.size());
  const OpLabel label = {kWeights, group};
  const NetworkGroup::Ticket ticket =
      settings_.quantized_weights
          ? comm_->rail().all_gather_int8({reinterpret_cast<bf16*>(data), size}, parts_, label)
          : comm_->rail().all_gather({data, size * static_cast<size_t>(element_bytes_)}, parts_, label);
  fetches_under_way_.push_back({ticket, channel, value});
  if (!settings_.overlap) announce(channel, value);
}

void WeightStore::announce(int64_t channel, uint64_t value) {
  const auto front_is_needed = [&] {
    // In order of issue: fetches before the requested one complete before it.
    return std::any_of(fetches_under_way_.begin(), fetches_under_way_.end(),
                       [&](const Fetch& fetch) { return fetch.channel == channel && fetch.value <= value; });
  };
  while (!fetches_under_way_.empty()) {
    const Fetch& fetch = fetches_under_way_.front();
    if (!comm_->rail().done(fetch.ticket) && !front_is_needed()) return;
    comm_->rail().wait(fetch.ticket);
    counters_.publish(fetch.channel, fetch.value);
    fetches_under_way_.pop_front();
  }
}

std::byte* WeightStore::open(int64_t group, bool forward) {
  return is_resident(group) ? open_resident(group) : open_gathered(group, forward);
}

std::byte* WeightStore::open_resident(int64_t group) {
  uint64_t& seen = seen_version_[static_cast<size_t>(group)];
  if (seen != version_) {
    announce(kResident, stamp(group));
    counters_.wait_all(kResident, stamp(group), {kWeights, group},
                       plan_.group(group).size() * element_bytes_);
    seen = version_;
  } else if (!fetches_under_way_.empty()) {
    announce(kResident, 0);
  }
  return resident_data_[static_cast<size_t>(group)];
}

bool WeightStore::is_complete(int64_t group) {
  TESSERA_CHECK(is_resident(group), "group {} is gathered", group);
  if (seen_version_[static_cast<size_t>(group)] == version_) return true;
  if (!fetches_under_way_.empty()) announce(kResident, 0);
  for (int rank = 0; rank < plan_.local_world_size(); ++rank) {
    if (counters_.value(rank, kResident) < stamp(group)) return false;
  }
  return true;
}

void WeightStore::close(int64_t group) {
  if (is_resident(group)) return;
  Slot* slot = find_slot(group);
  TESSERA_CHECK(slot != nullptr && slot->is_open, "group {} is not open", group);
  slot->is_open = false;
  slot->last_close = ++num_closes_;
  counters_.publish(kClosedGathered, num_closes_);
}

WeightStore::Slot* WeightStore::find_slot(int64_t group) {
  for (Slot& slot : slots_) {
    if (slot.group == group && slot.version == version_) return &slot;
  }
  return nullptr;
}

// The least recently used slot.
WeightStore::Slot& WeightStore::slot_to_fill(int64_t group) {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.for_ends != is_end(group) || slot.is_open) continue;
    if (oldest == nullptr || slot.last_use < oldest->last_use) oldest = &slot;
  }
  TESSERA_CHECK(oldest != nullptr, "no memory for group {}: all {} slots are open", group, slots_.size());
  return *oldest;
}

WeightStore::Slot& WeightStore::start_gather(int64_t group) {
  Slot& slot = slot_to_fill(group);
  counters_.wait_all(kClosedGathered, slot.last_close, {kWeights, slot.group});
  slot.group = group;
  slot.version = version_;
  slot.gather = ++num_gathers_;
  slot.is_complete = false;
  slot.last_use = ++use_clock_;
  copy_own_part(group, slot.data);
  start_fetch(group, slot.data, kGathered, slot.gather);
  return slot;
}

std::byte* WeightStore::open_gathered(int64_t group, bool forward) {
  Slot* slot = find_slot(group);
  if (slot == nullptr) slot = &start_gather(group);
  TESSERA_CHECK(!slot->is_open, "group {} is open already", group);
  slot->is_open = true;
  slot->last_use = ++use_clock_;
  fetch_ahead(group, forward);
  announce(kGathered, slot->is_complete ? 0 : slot->gather);
  if (!slot->is_complete) {
    counters_.wait_all(kGathered, slot->gather, {kWeights, group},
                       plan_.group(group).size() * element_bytes_);
    slot->is_complete = true;
  }
  return slot->data;
}

// Prefetches the next layers in the same direction, as many as there are other slots, and the head while the
// last layers are being computed.
void WeightStore::fetch_ahead(int64_t group, bool forward) {
  const int64_t last_layer = plan_.num_groups() - 2;
  const int64_t ahead =
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.for_ends; }) - 1;
  const int64_t direction = forward ? 1 : -1;
  for (int64_t i = 1; i <= ahead; ++i) {
    const int64_t next = group + direction * i;
    if (next < 1 || next > last_layer || is_resident(next)) continue;
    Slot* slot = find_slot(next);
    if (slot == nullptr) slot = &start_gather(next);
    slot->last_use = ++use_clock_;  // keeps it from being evicted before use
  }
  const int64_t head = last_layer + 1;
  if (forward && group >= std::max<int64_t>(1, last_layer - 1) && group <= last_layer && !is_resident(head) &&
      find_slot(head) == nullptr) {
    start_gather(head);
  }
}

}  // namespace tessera
