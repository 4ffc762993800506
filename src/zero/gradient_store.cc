#include "zero/gradient_store.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/rank_sum/rank_sum.h"
#include "platform/prefault.h"

namespace tessera {
namespace {

// Channels of the node's counters, in groups closed since the beginning.
constexpr int64_t kClosed = 0;  // by this rank: its buffer may be read
constexpr int64_t kSummed = 1;  // read by this rank: buffers may be written again
constexpr int64_t kNumChannels = 2;

// One share is summed up while another is on the network.
constexpr int64_t kNumStaging = 2;

constexpr const char* kWhat = "gradients";

int64_t float_bytes(int64_t num_elements) { return num_elements * static_cast<int64_t>(sizeof(float)); }

}  // namespace

GradientStore::GradientStore(const ZeroLayout& layout, const ZeroSettings& settings, const ShardPlan& plan,
                             Communicator& comm, ThreadPool& pool)
    : settings_(settings),
      plan_(plan),
      comm_(&comm),
      pool_(&pool),
      direct_(!needs_layer_buffers(layout, settings)),
      whole_(accumulates_whole_gradient(layout, settings)),
      uses_network_(layout.num_nodes > 1),
      num_ranks_(layout.local_world_size),
      local_rank_(comm.world().local_rank) {
  TESSERA_CHECK(settings.gradient_dtype == DType::kF32, "accumulators are {}",
                dtype_name(settings.gradient_dtype));
  int64_t num_accumulated = 0, largest_share = 0, largest_layer = 0, largest_end = 0;
  const int64_t last = plan.num_groups() - 1;
  for (int64_t g = 0; g <= last; ++g) {
    std::vector<Part>& parts = share_parts_.emplace_back();
    int64_t at = 0;
    for (const Part& part : plan.rail_parts(g, local_rank_)) {
      parts.push_back({at, at + part.size()});
      at += part.size();
    }
    largest_share = std::max(largest_share, at);
    accumulator_begin_.push_back(num_accumulated);
    num_accumulated += whole_ ? at : own_in_share(g).size();
    // A final norm alone (tied embeddings) is open together with the embedding and takes the buffer of a
    // layer.
    const bool is_layer = g > 0 && (g < last || plan.group(g).size() < plan.group(0).size() / 2);
    slot_index_.push_back(is_layer ? static_cast<size_t>(g % 2) : 2);
    int64_t& largest = is_layer ? largest_layer : largest_end;
    largest = std::max(largest, plan.group(g).size());
  }
  accumulators_ = PageBuffer(float_bytes(num_accumulated));
  prefault(pool, accumulators_.as<std::byte>());
  slots_ = {{0}, {largest_layer}, {2 * largest_layer}};
  if (direct_) return;

  elements_per_rank_ = 2 * largest_layer + largest_end;
  in_flight_ = comm.node().allocate("gradients in flight", float_bytes(elements_per_rank_ * num_ranks_));
  counters_ = comm.node().make_counters("gradients", kNumChannels);
  if (!whole_ && num_ranks_ > 1) {
    staging_ = PageBuffer(kNumStaging * float_bytes(largest_share));
    for (int64_t i = 0; i < kNumStaging; ++i) {
      staging_free_.push_back(staging_.data() + i * float_bytes(largest_share));
    }
  }
}

Part GradientStore::own_in_share(int64_t group) const {
  return share_parts_[static_cast<size_t>(group)][static_cast<size_t>(comm_->world().node_rank)];
}

GradientStore::Slot& GradientStore::slot_of(int64_t group) {
  return slots_[slot_index_[static_cast<size_t>(group)]];
}

float* GradientStore::slot_data(int local_rank, int64_t group) const {
  const int64_t offset = slots_[slot_index_[static_cast<size_t>(group)]].offset;
  return in_flight_.as<float>().data() + local_rank * elements_per_rank_ + offset;
}

ConstTensorView GradientStore::gradients() const {
  return {accumulators_.data(), DType::kF32, {std::ssize(accumulators_.as<float>())}};
}

int64_t GradientStore::index(int64_t group, int64_t element) const {
  const int64_t begin = accumulator_begin_[static_cast<size_t>(group)];
  const Part own = plan_.part(group, comm_->world().rank);
  if (!whole_) return begin + element - own.begin;
  for (int node = 0; node < plan_.num_nodes(); ++node) {
    const Part part = plan_.part(group, node * plan_.local_world_size() + local_rank_);
    if (element < part.begin || element >= part.end) continue;
    return begin + share_parts_[static_cast<size_t>(group)][static_cast<size_t>(node)].begin + element -
           part.begin;
  }
  TESSERA_CHECK(false, "element {} of group {} is not in the share of rank {}", element, group,
                comm_->world().rank);
  return -1;
}

void GradientStore::begin_pass(bool is_first, bool is_last) {
  is_first_pass_ = is_first;
  is_last_pass_ = is_last;
}

std::byte* GradientStore::open(int64_t group) {
  if (direct_) {
    return reinterpret_cast<std::byte*>(accumulators_.as<float>().data() +
                                        accumulator_begin_[static_cast<size_t>(group)]);
  }
  const uint64_t last_use = slot_of(group).last_use;
  while (num_summed_ < last_use) {
    if (closed_.empty()) {
      finish_oldest_reduction();
    } else {
      sum_next();
    }
  }
  counters_.wait_all(kSummed, last_use, {kWhat, group}, float_bytes(plan_.group(group).size()));
  return reinterpret_cast<std::byte*>(slot_data(local_rank_, group));
}

void GradientStore::close(int64_t group) {
  ++num_closed_;
  if (direct_) {
    if (is_last_pass_ && uses_network_) {
      start_reduction(group,
                      accumulators_.as<float>().data() + accumulator_begin_[static_cast<size_t>(group)],
                      num_closed_);
    }
    return;
  }
  slot_of(group).last_use = num_closed_;
  counters_.publish(kClosed, num_closed_);
  closed_.push_back({group, num_closed_});
  // One group later the other ranks have most likely closed it as well.
  while (closed_.size() > 1) sum_next();
}

void GradientStore::sum_next() {
  const Closed next = closed_.front();
  closed_.pop_front();
  const int64_t group = next.group;
  counters_.wait_all(kClosed, next.number, {kWhat, group}, float_bytes(plan_.group(group).size()));
  if (!whole_ && num_ranks_ == 1) {  // the buffer is the share
    start_reduction(group, slot_data(local_rank_, group), next.number);
    return;
  }
  float* sums;
  if (whole_) {
    sums = accumulators_.as<float>().data() + accumulator_begin_[static_cast<size_t>(group)];
    sum_share(group, sums, !is_first_pass_);
  } else {
    while (staging_free_.empty()) finish_oldest_reduction();
    sums = reinterpret_cast<float*>(staging_free_.back());
    staging_free_.pop_back();
    sum_share(group, sums, false);
  }
  num_summed_ = next.number;
  counters_.publish(kSummed, num_summed_);
  if (!whole_ || (is_last_pass_ && uses_network_)) start_reduction(group, sums, next.number);
}

void GradientStore::sum_share(int64_t group, float* to, bool add) {
  const Part range = plan_.group(group);
  for (int node = 0; node < plan_.num_nodes(); ++node) {
    const Part part = plan_.part(group, node * plan_.local_world_size() + local_rank_);
    if (part.size() == 0) continue;
    inputs_.clear();
    for (int rank = 0; rank < num_ranks_; ++rank) {
      inputs_.emplace_back(slot_data(rank, group) + part.begin - range.begin);
    }
    rank_sum(inputs_, add ? Update::kAdd : Update::kOverwrite,
             to + share_parts_[static_cast<size_t>(group)][static_cast<size_t>(node)].begin, part.size(),
             pool_);
  }
}

void GradientStore::start_reduction(int64_t group, float* share, uint64_t number) {
  const std::span<float> data(share, static_cast<size_t>(share_size(group)));
  const std::vector<Part>& parts = share_parts_[static_cast<size_t>(group)];
  const OpLabel label = {kWhat, group};
  const NetworkGroup::Ticket ticket = settings_.weight_dtype == DType::kF32
                                          ? comm_->rail().reduce_scatter_f32(data, parts, label)
                                          : comm_->rail().reduce_scatter(data, parts, label);
  reductions_.push_back({ticket, group, share, number, is_first_pass_});
}

void GradientStore::finish_oldest_reduction() {
  TESSERA_CHECK(!reductions_.empty(), "nothing is on the network");
  const Reduction reduction = reductions_.front();
  reductions_.pop_front();
  comm_->rail().wait(reduction.ticket);
  if (whole_) return;
  const Part own = own_in_share(reduction.group);
  if (own.size() > 0) {
    const RankInput sum = reduction.data + own.begin;
    rank_sum({&sum, 1}, reduction.is_first_pass ? Update::kOverwrite : Update::kAdd,
             accumulators_.as<float>().data() + accumulator_begin_[static_cast<size_t>(reduction.group)],
             own.size(), pool_);
  }
  if (num_ranks_ == 1) {
    num_summed_ = reduction.number;
    counters_.publish(kSummed, num_summed_);
  } else {
    staging_free_.push_back(reinterpret_cast<std::byte*>(reduction.data));
  }
}

void GradientStore::finish_pass() {
  while (!closed_.empty()) sum_next();
  if (!is_last_pass_) return;
  while (!reductions_.empty()) finish_oldest_reduction();
  if (settings_.stage == 0 && uses_network_) share_sums();
}

// Stage 0: every node needs the sums of all parts.
void GradientStore::share_sums() {
  NetworkGroup::Ticket last = 0;
  std::vector<Part> byte_parts;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    byte_parts.clear();
    for (const Part& part : share_parts_[static_cast<size_t>(g)]) {
      byte_parts.push_back({float_bytes(part.begin), float_bytes(part.end)});
    }
    float* share = accumulators_.as<float>().data() + accumulator_begin_[static_cast<size_t>(g)];
    last = comm_->rail().all_gather(
        {reinterpret_cast<std::byte*>(share), static_cast<size_t>(float_bytes(share_size(g)))}, byte_parts,
        {kWhat, g});
  }
  comm_->rail().wait(last);
}

}  // namespace tessera
