#include "shard/gradients/gradient_store.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/rank_sum/rank_sum.h"
#include "platform/prefault.h"
#include "shard/layout/device_window_places.h"

namespace tessera {
namespace {

// Channels of the node's counters; values count groups closed since the beginning.
constexpr int64_t kClosed = 0;  // by this rank: its buffer may be read
constexpr int64_t kSummed = 1;  // read by this rank: buffers may be overwritten
constexpr int64_t kNumChannels = 2;

// One share is summed while another is on the network.
constexpr int64_t kNumStaging = 2;

constexpr const char* kWhat = "gradients";

int64_t float_bytes(int64_t num_elements) { return num_elements * static_cast<int64_t>(sizeof(float)); }

}  // namespace

GradientStore::GradientStore(const ZeroLayout& layout, const ZeroSettings& settings, const ShardPlan& plan,
                             Communicator& comm, ThreadPool& pool, OnSum on_sum)
    : settings_(settings),
      plan_(plan),
      comm_(&comm),
      pool_(&pool),
      on_sum_(std::move(on_sum)),
      direct_(!needs_layer_buffers(layout, settings)),
      whole_(accumulates_whole_gradient(layout, settings)),
      uses_network_(layout.num_nodes > 1),
      has_feedback_(has_gradient_feedback(layout, settings)),
      num_ranks_(layout.local_world_size),
      local_rank_(comm.world().local_rank) {
  TESSERA_CHECK(settings.gradient_dtype == DType::kF32 || settings.gradient_dtype == DType::kBF16,
                "accumulators are {}", dtype_name(settings.gradient_dtype));
  TESSERA_CHECK(!on_sum_ || (!direct_ && whole_ == !uses_network_), "stage {}, {} passes", settings.stage,
                settings.passes_per_step);
  int64_t num_accumulated = 0, largest_share = 0, largest_layer = 0, largest_end = 0;
  const int64_t last = plan.num_groups() - 1;
  for (int64_t g = 0; g <= last; ++g) {
    const Share& share = shares_.emplace_back(share_of(g));
    largest_share = std::max(largest_share, share.size);
    const int64_t size = whole_ ? share.size : share.own_size;
    accumulator_begin_.push_back(on_sum_ ? 0 : num_accumulated);
    num_accumulated = on_sum_ ? std::max(num_accumulated, size) : num_accumulated + size;
    const bool is_layer = takes_layer_place(layout, g);
    slot_index_.push_back(is_layer ? static_cast<size_t>(g % 2) : 2);
    int64_t& largest = is_layer ? largest_layer : largest_end;
    largest = std::max(largest, plan.group(g).size());
  }
  if (has_feedback_) plan_feedback(layout);
  accumulators_ = PageBuffer(num_accumulated * dtype_bytes(settings.gradient_dtype));
  prefault(pool, accumulators_.as<std::byte>());
  slots_ = {{0}, {largest_layer}, {2 * largest_layer}};
  if (direct_) return;

  elements_per_rank_ = 2 * largest_layer + largest_end;
  in_flight_ = comm.node().allocate("gradients in flight", float_bytes(elements_per_rank_ * num_ranks_));
  comm.node().prefault(in_flight_, pool);
  counters_ = comm.node().make_counters("gradients", kNumChannels);
  if (settings.gradient_dtype == DType::kBF16) rounding_ = PageBuffer(float_bytes(kRoundingElements));
  if (needs_staging(layout, settings)) {
    staging_ = PageBuffer(kNumStaging * float_bytes(largest_share));
    for (int64_t i = 0; i < kNumStaging; ++i) {
      staging_free_.push_back(staging_.data() + i * float_bytes(largest_share));
    }
  }
}

GradientStore::Share GradientStore::share_of(int64_t group) const {
  const int rank = comm_->world().rank;
  Share share = {.elements = plan_.rail_parts(group, local_rank_), .places = {}};
  share.elements.push_back(plan_.expert_part(group, rank));
  share.own_size = plan_.part(group, rank).size() + share.elements.back().size();
  for (const Part& part : share.elements) {
    const int64_t begin = num_ranks_ == 1 ? part.begin - plan_.group(group).begin : share.size;
    share.places.push_back({begin, begin + part.size()});
    share.size = begin + part.size();
  }
  return share;
}

std::array<Part, 2> GradientStore::own_in_share(int64_t group) const {
  const std::vector<Part>& places = share(group).places;
  return {places[static_cast<size_t>(comm_->world().node_rank)], places.back()};
}

GradientStore::Slot& GradientStore::slot_of(int64_t group) {
  return slots_[slot_index_[static_cast<size_t>(group)]];
}

float* GradientStore::slot_data(int local_rank, int64_t group) const {
  const int64_t offset = slots_[slot_index_[static_cast<size_t>(group)]].offset;
  return in_flight_.as<float>().data() + local_rank * elements_per_rank_ + offset;
}

ConstTensorView GradientStore::gradients() const {
  const int64_t count = accumulators_.size_bytes() / dtype_bytes(settings_.gradient_dtype);
  return {accumulators_.data(), settings_.gradient_dtype, {count}};
}

int64_t GradientStore::index(int64_t group, int64_t element) const {
  const int64_t begin = accumulator_begin_[static_cast<size_t>(group)];
  if (!whole_) {
    const Part own = plan_.part(group, comm_->world().rank), experts = share(group).elements.back();
    const bool is_expert = experts.begin <= element && element < experts.end;
    return begin + element + (is_expert ? own.size() - experts.begin : -own.begin);
  }
  const Share& share = this->share(group);
  for (size_t i = 0; i < share.elements.size(); ++i) {
    const Part part = share.elements[i];
    if (element < part.begin || element >= part.end) continue;
    return begin + share.places[i].begin + element - part.begin;
  }
  TESSERA_CHECK(false, "element {} of group {} is not in the share of rank {}", element, group,
                comm_->world().rank);
  return -1;
}

Update GradientStore::begin_pass(bool is_first, bool is_last, bool is_ignored) {
  keeps_feedback_ = is_ignored;
  is_first_pass_ = is_first;
  is_last_pass_ = is_last;
  return direct_ && !is_first ? Update::kAdd : Update::kOverwrite;
}

std::byte* GradientStore::open(int64_t group) {
  if (direct_) {
    return reinterpret_cast<std::byte*>(accumulators_f32(accumulator_begin_[static_cast<size_t>(group)]));
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
      float* share = accumulators_f32(accumulator_begin_[static_cast<size_t>(group)]);
      start_reduction(group, share, num_closed_, Update::kOverwrite);
    }
    return;
  }
  slot_of(group).last_use = num_closed_;
  counters_.publish(kClosed, num_closed_);
  closed_.push_back({group, num_closed_});
  // One group later, the other ranks have most likely closed it too.
  while (closed_.size() > 1) sum_next();
}

void GradientStore::sum_next() {
  const Closed next = closed_.front();
  closed_.pop_front();
  const int64_t group = next.group;
  counters_.wait_all(kClosed, next.number, {kWhat, group}, float_bytes(plan_.group(group).size()));
  const Update update = is_first_pass_ ? Update::kOverwrite : Update::kAdd;
  const bool reduces = uses_network_ && (!whole_ || is_last_pass_);
  if (reduces && !whole_ && num_ranks_ == 1) {  // the buffer itself is the share
    start_reduction(group, slot_data(local_rank_, group), next.number, update);
    return;
  }
  float* share = nullptr;
  if (reduces && !reduces_in_place()) {
    share = take_staging();
    sum_into_staging(group, share);
  } else {
    sum_into_accumulators(group);
    share = accumulators_f32(accumulator_begin_[static_cast<size_t>(group)]);
  }
  num_summed_ = next.number;
  counters_.publish(kSummed, num_summed_);
  // Staged shares of whole gradients already include the accumulators.
  if (reduces) {
    start_reduction(group, share, next.number, whole_ ? Update::kOverwrite : update);
  } else if (on_sum_) {
    on_sum_(group);
  }
}

template <typename Body>
void GradientStore::for_each_part(int64_t group, const Body& body) {
  const Part range = plan_.group(group);
  const Share& share = this->share(group);
  for (size_t i = 0; i < share.elements.size(); ++i) {
    const Part part = share.elements[i];
    if (part.size() == 0) continue;
    inputs_.clear();
    for (int rank = 0; rank < num_ranks_; ++rank) {
      inputs_.emplace_back(slot_data(rank, group) + part.begin - range.begin);
    }
    body(share.places[i].begin, part.size());
  }
}

void GradientStore::accumulate(std::span<const RankInput> inputs, Update update, int64_t begin,
                               int64_t count) {
  if (settings_.gradient_dtype == DType::kF32) {
    rank_sum(inputs, update, accumulators_f32(begin), count, pool_);
    return;
  }
  float* sums = rounding_.as<float>().data();
  for (int64_t at = 0; at < count; at += kRoundingElements) {
    const int64_t size = std::min(kRoundingElements, count - at);
    block_inputs_.clear();
    if (update == Update::kAdd) block_inputs_.emplace_back(accumulators_bf16(begin + at));
    for (const RankInput& input : inputs) block_inputs_.emplace_back(input.f32() + at);
    rank_sum(block_inputs_, Update::kOverwrite, sums, size, pool_);
    round_to_bf16(sums, accumulators_bf16(begin + at), size, pool_);
  }
}

void GradientStore::sum_into_accumulators(int64_t group) {
  const int64_t first = accumulator_begin_[static_cast<size_t>(group)];
  for_each_part(group, [&](int64_t begin, int64_t size) {
    accumulate(inputs_, is_first_pass_ ? Update::kOverwrite : Update::kAdd, first + begin, size);
  });
}

void GradientStore::sum_into_staging(int64_t group, float* to) {
  const int64_t first = accumulator_begin_[static_cast<size_t>(group)];
  for_each_part(group, [&](int64_t begin, int64_t size) {
    if (whole_ && !is_first_pass_)
      inputs_.insert(inputs_.begin(), RankInput(accumulators_bf16(first + begin)));
    rank_sum(inputs_, Update::kOverwrite, to + begin, size, pool_);
  });
}

float* GradientStore::take_staging() {
  while (staging_free_.empty()) finish_oldest_reduction();
  float* staging = reinterpret_cast<float*>(staging_free_.back());
  staging_free_.pop_back();
  return staging;
}

void GradientStore::start_reduction(int64_t group, float* share, uint64_t number, Update update) {
  const std::span<float> data(share, static_cast<size_t>(share_size(group)));
  const std::span<const Part> parts = this->share(group).exchanged();
  const OpLabel label = {kWhat, group};
  NetworkGroup& rail = comm_->rail();
  NetworkGroup::Ticket ticket = 0;
  if (has_feedback()) {
    // Values that earlier groups left between parameters must not decide the scale of a block.
    for (const Part& gap : gaps_[static_cast<size_t>(group)])
      std::fill_n(share + gap.begin, gap.size(), 0.0f);
    ticket =
        rail.reduce_scatter_coded(*settings_.quantized_gradients, data, next_feedback(group), parts, label);
  } else if (settings_.network_dtype == DType::kF32) {
    ticket = rail.reduce_scatter_f32(data, parts, label);
  } else {
    ticket = rail.reduce_scatter(data, parts, label);
  }
  reductions_.push_back({ticket, group, share, number, update});
  if (!settings_.overlap) rail.wait(ticket);
}

void GradientStore::finish_oldest_reduction() {
  TESSERA_CHECK(!reductions_.empty(), "nothing is on the network");
  const Reduction reduction = reductions_.front();
  reductions_.pop_front();
  comm_->rail().wait(reduction.ticket);
  if (reduces_in_place()) return;
  int64_t to = accumulator_begin_[static_cast<size_t>(reduction.group)];
  for (const Part& own : own_in_share(reduction.group)) {
    if (own.size() == 0) continue;
    const RankInput sum = reduction.data + own.begin;
    accumulate({&sum, 1}, reduction.update, to + (whole_ ? own.begin : 0), own.size());
    if (!whole_) to += own.size();
  }
  if (staging_.size_bytes() == 0) {  // frees the buffer the model writes to
    num_summed_ = reduction.number;
    counters_.publish(kSummed, num_summed_);
  } else {
    staging_free_.push_back(reinterpret_cast<std::byte*>(reduction.data));
  }
  if (on_sum_) on_sum_(reduction.group);
}

void GradientStore::finish_pass() {
  while (!closed_.empty()) sum_next();
  if (!is_last_pass_ && !on_sum_) return;
  while (!reductions_.empty()) finish_oldest_reduction();
  if (settings_.stage == 0 && uses_network_) share_sums();
}

// Stage 0: every node needs the sums of all parts.
void GradientStore::share_sums() {
  const int64_t element_bytes = dtype_bytes(settings_.gradient_dtype);
  NetworkGroup::Ticket last = 0;
  std::vector<Part> byte_parts;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    byte_parts.clear();
    for (const Part& part : share(g).exchanged()) {
      byte_parts.push_back({part.begin * element_bytes, part.end * element_bytes});
    }
    const std::span<std::byte> share = accumulators_.as<std::byte>().subspan(
        static_cast<size_t>(accumulator_begin_[static_cast<size_t>(g)] * element_bytes),
        static_cast<size_t>(share_size(g) * element_bytes));
    last = comm_->rail().all_gather(share, byte_parts, {kWhat, g});
  }
  comm_->rail().wait(last);
}

}  // namespace tessera
