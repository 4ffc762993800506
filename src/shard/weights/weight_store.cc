#include "shard/weights/weight_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

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
      pool_(&pool),
      element_bytes_(dtype_bytes(settings.weight_dtype)),
      sharded_(shards_weights(layout, settings)),
      fetches_(layout.num_nodes > 1 && settings.stage > 0),
      order_(layout, settings) {
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

  allocate_parts(pool);
}

void WeightStore::allocate_parts(ThreadPool& pool) {
  NodeGroup& ranks = comm_->node();
  int64_t end = 0;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    owned_begin_[static_cast<size_t>(g)] = end;
    const int node = comm_->world().node_rank;
    end += plan_.node_part(g, node).size() + plan_.node_expert_part(g, node).size();
  }
  weights_ = ranks.allocate("own weights", std::max<int64_t>(end, 1) * element_bytes_);
  ranks.prefault(weights_, pool);
  live_ = ranks.allocate("live weights", std::max<int64_t>(order_.num_elements(), 1) * element_bytes_);
  ranks.prefault(live_, pool);
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    if (order_.is_resident(g))
      resident_data_[static_cast<size_t>(g)] = live_.data() + order_.resident_begin(g) * element_bytes_;
  }
  for (size_t slot = 0; slot < order_.num_slots(); ++slot) {
    slots_.emplace_back().data = live_.data() + order_.slot_begin(slot) * element_bytes_;
  }
}

TensorView WeightStore::memory() const {
  return {weights_.data(), settings_.weight_dtype, {weights_.size_bytes() / element_bytes_}};
}

int64_t WeightStore::index(int64_t group, int64_t element) const {
  const int64_t begin = owned_begin_[static_cast<size_t>(group)];
  if (!sharded_) return begin + element - plan_.group(group).begin;
  const int node = comm_->world().node_rank;
  const Part exchanged = plan_.node_part(group, node), experts = plan_.node_expert_part(group, node);
  return experts.begin <= element && element < experts.end
             ? begin + exchanged.size() + element - experts.begin
             : begin + element - exchanged.begin;
}

// Increases with every update of every group.
uint64_t WeightStore::stamp(int64_t group) const {
  return version_ * static_cast<uint64_t>(plan_.num_groups()) + static_cast<uint64_t>(group) + 1;
}

void WeightStore::loaded(bool whole_node) {
  if (whole_node) {
    TESSERA_CHECK(!sharded_ && !fetches_rounded(), "gathered weights are updated, not loaded");
    return comm_->node().barrier({"loaded weights"});
  }
  for (int64_t group = 0; group < plan_.num_groups(); ++group) updated(group);
}

void WeightStore::reserve_packed_forms(std::span<const int64_t> bytes_by_group, PackShare pack_share) {
  TESSERA_CHECK(node_has_all(), "packed forms of gathered weights");
  packed_.emplace(bytes_by_group, comm_->node(), *pool_,
                  PackedWeights::Weights{[this](int64_t group) { return is_complete(group); },
                                         [this](int64_t group) { return open_memory(group, true); }},
                  std::move(pack_share));
}

void WeightStore::finish_updates() {
  if (packed_) packed_->weights_changed();
}

void WeightStore::updated(int64_t group) {
  if (group == 0) {
    ++version_;
    order_.forget();
  }
  if (!is_resident(group)) return;
  if (!fetches_) {
    counters_.publish(kResident, stamp(group));
    return;
  }
  std::byte* data = resident_data_[static_cast<size_t>(group)];
  if (sharded_) copy_own_parts(group, data);
  start_fetch(group, data, kResident, stamp(group));
}

void WeightStore::copy_own_parts(int64_t group, std::byte* to) const {
  const int rank = comm_->world().rank;
  for (const Part& part : {plan_.part(group, rank), plan_.expert_part(group, rank)}) {
    if (part.size() == 0) continue;
    std::memcpy(to + (part.begin - plan_.group(group).begin) * element_bytes_,
                weights_.data() + index(group, part.begin) * element_bytes_,
                static_cast<size_t>(part.size() * element_bytes_));
  }
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
    return std::any_of(fetches_under_way_.begin(), fetches_under_way_.end(), [&](const Transfer& fetch) {
      return fetch.channel == channel && fetch.value <= value;
    });
  };
  while (!fetches_under_way_.empty()) {
    const Transfer& fetch = fetches_under_way_.front();
    if (!comm_->rail().done(fetch.ticket) && !front_is_needed()) return;
    comm_->rail().wait(fetch.ticket);
    counters_.publish(fetch.channel, fetch.value);
    fetches_under_way_.pop_front();
  }
}

std::byte* WeightStore::open(int64_t group, WeightUse use) {
  std::byte* const weights = open_memory(group, use == WeightUse::kForward);
  if (packed_) packed_->complete(group);
  return weights;
}

std::byte* WeightStore::open_memory(int64_t group, bool forward) {
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
  slots_[order_.slot_of(group)].last_close = ++num_closes_;
  order_.close(group);
  counters_.publish(kClosedGathered, num_closes_);
}

void WeightStore::start_gather(const Fetch& fetch) {
  Slot& slot = slots_[fetch.slot];
  counters_.wait_all(kClosedGathered, slot.last_close, {kWeights, fetch.group});
  slot.gather = ++num_gathers_;
  slot.is_complete = false;
  copy_own_parts(fetch.group, slot.data);
  start_fetch(fetch.group, slot.data, kGathered, slot.gather);
}

std::byte* WeightStore::open_gathered(int64_t group, bool forward) {
  for (const Fetch& fetch : order_.open(group, forward)) start_gather(fetch);
  Slot& slot = slots_[order_.slot_of(group)];
  announce(kGathered, slot.is_complete ? 0 : slot.gather);
  if (!slot.is_complete) {
    counters_.wait_all(kGathered, slot.gather, {kWeights, group}, plan_.group(group).size() * element_bytes_);
    slot.is_complete = true;
  }
  return slot.data;
}

}  // namespace tessera
