#include "context/expert_rail.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

// Flags of a rank that follow its counts.
constexpr int32_t kHasMore = 1, kWishesToAbandon = 2;

constexpr const char* kRows = "rows of experts";

}  // namespace

ExpertRail::ExpertRail(Communicator& comm, int64_t num_experts, int64_t max_rows, int64_t row_bytes,
                       ThreadPool& pool)
    : rail_(comm.open_token_rail(0, comm.world().num_nodes)),
      pool_(pool),
      num_experts_(num_experts),
      num_nodes_(comm.world().num_nodes),
      rows_of_pair_(rows_of_pair(max_rows, num_nodes_)),
      box_(buffer_bytes(max_rows, row_bytes, num_nodes_)) {
  const auto num_nodes = static_cast<size_t>(num_nodes_);
  table_.resize(num_nodes * static_cast<size_t>(row_size()));
  for (int64_t node = 0; node < num_nodes_; ++node) {
    const int64_t bytes = row_size() * static_cast<int64_t>(sizeof(int32_t));
    table_parts_.push_back({node * bytes, (node + 1) * bytes});
  }
  own_rows_.resize(num_nodes);
  own_parts_.resize(num_nodes);
  box_parts_.resize(num_nodes);
  box_rows_.resize(num_nodes);
  runs_.reserve(num_nodes * static_cast<size_t>(num_experts));
  arriving_.resize(num_nodes_ * rows_of_pair_, 1, num_experts);
}

ExpertRail::~ExpertRail() { rail_.release_buffers(); }

NetworkCounters ExpertRail::take_network() {
  const NetworkCounters now = rail_.counters();
  return now.since(std::exchange(counted_, now));
}

int64_t ExpertRail::rows_between(int64_t from, int64_t to) const {
  const ExpertRange experts = experts_of(to);
  const std::span<const int32_t> counts = told_by(from);
  return std::accumulate(counts.begin() + experts.begin, counts.begin() + experts.end, int64_t{0});
}

ExpertExchange::Agreement ExpertRail::agree(const ExpertRows& rows, bool has_more) {
  TESSERA_CHECK(rows.num_experts() == num_experts_, "rows of {} experts", rows.num_experts());
  int32_t* const own = table_.data() + rail_.index() * row_size();
  for (int64_t e = 0; e < num_experts_; ++e) own[e] = static_cast<int32_t>(rows.end(e) - rows.begin(e));
  own[num_experts_] = (has_more ? kHasMore : 0) | (wishes_to_abandon_ ? kWishesToAbandon : 0);
  rail_.wait(rail_.all_gather(std::as_writable_bytes(std::span(table_)), table_parts_, {kRows}));

  int32_t flags = 0;
  for (int64_t node = 0; node < num_nodes_; ++node) flags |= told_by(node).back();
  is_abandoned_ = is_abandoned_ || (flags & kWishesToAbandon) != 0;
  if (is_abandoned_) std::ranges::fill(table_, 0);
  int64_t most = 0;
  for (int64_t from = 0; from < num_nodes_; ++from) {
    for (int64_t to = 0; to < num_nodes_; ++to) most = std::max(most, rows_between(from, to));
  }
  int64_t begin = 0;
  for (int64_t to = 0; to < num_nodes_; ++to) {
    const int64_t count = rows_between(rail_.index(), to);
    own_rows_[static_cast<size_t>(to)] = {begin, begin + count};
    begin += count;
  }
  return {std::max<int64_t>(1, divide_up(most, rows_of_pair_)), !is_abandoned_ && (flags & kHasMore) != 0};
}

Part ExpertRail::of_round(int64_t count) const {
  return {std::min(count, round_ * rows_of_pair_), std::min(count, (round_ + 1) * rows_of_pair_)};
}

ExpertRows& ExpertRail::arriving(int64_t round) {
  round_ = round;
  const ExpertRange experts = own_experts();
  // A node's rows are ordered by expert: those of the round are a window of them.
  runs_.clear();
  int64_t in_box = 0;
  for (int64_t node = 0; node < num_nodes_; ++node) {
    const Part window = of_round(rows_between(node, rail_.index()));
    const std::span<const int32_t> counts = told_by(node);
    box_rows_[static_cast<size_t>(node)] = in_box;
    int64_t before = 0;
    for (int64_t e = experts.begin; e < experts.end; ++e) {
      const int64_t after = before + counts[static_cast<size_t>(e)];
      const int64_t begin = std::max(before, window.begin), end = std::min(after, window.end);
      runs_.push_back({node, begin - window.begin, /*arrived=*/0, std::max<int64_t>(0, end - begin)});
      before = after;
    }
    if (node != rail_.index()) in_box += window.size();
  }
  const int64_t num_own = experts.end - experts.begin;
  arriving_.resize(std::accumulate(runs_.begin(), runs_.end(), int64_t{0},
                                   [](int64_t sum, const Run& run) { return sum + run.count; }),
                   1, num_experts_);
  int64_t arrived = 0;
  for (int64_t e = 0; e < num_experts_; ++e) {
    arriving_.starts[static_cast<size_t>(e)] = static_cast<int32_t>(arrived);
    for (int64_t node = 0; node < num_nodes_ && experts.begin <= e && e < experts.end; ++node) {
      Run& run = runs_[static_cast<size_t>(node * num_own + e - experts.begin)];
      run.arrived = arrived;
      std::fill_n(arriving_.experts.begin() + arrived, run.count, static_cast<int32_t>(e));
      arrived += run.count;
    }
  }
  arriving_.starts.back() = static_cast<int32_t>(arrived);
  std::iota(arriving_.choices.begin(), arriving_.choices.end(), 0);
  std::iota(arriving_.rows.begin(), arriving_.rows.end(), 0);
  return arriving_;
}

void ExpertRail::set_parts(int64_t row_bytes) {
  for (int64_t node = 0; node < num_nodes_; ++node) {
    const auto i = static_cast<size_t>(node);
    const Part sent = of_round(own_rows_[i].size());
    const int64_t begin = own_rows_[i].begin + sent.begin;
    const int64_t arriving = of_round(rows_between(node, rail_.index())).size();
    own_parts_[i] = {begin * row_bytes, (begin + sent.size()) * row_bytes};
    box_parts_[i] = {box_rows_[i] * row_bytes, (box_rows_[i] + arriving) * row_bytes};
    if (node == rail_.index()) own_parts_[i] = box_parts_[i] = {0, 0};
  }
}

// The rows of this rank's own node lie at `from`, or `to`, among its rows; others' in the box.
void ExpertRail::copy_runs(bool of_own_node, const std::byte* from, std::byte* to, int64_t row_bytes,
                           bool back) const {
  const Part& own = own_rows_[static_cast<size_t>(rail_.index())];
  const int64_t own_begin = own.begin + of_round(own.size()).begin;
  pool_.parallel_blocks(std::ssize(runs_), 1, [&](int64_t begin, int64_t /*end*/) {
    const Run& run = runs_[static_cast<size_t>(begin)];
    if (run.count == 0 || (run.node == rail_.index()) != of_own_node) return;
    const int64_t sent = run.sent + (of_own_node ? own_begin : box_rows_[static_cast<size_t>(run.node)]);
    const int64_t source = back ? run.arrived : sent, target = back ? sent : run.arrived;
    std::memcpy(to + target * row_bytes, from + source * row_bytes,
                static_cast<size_t>(run.count * row_bytes));
  });
}

void ExpertRail::send(ConstTensorView own_RN, TensorView arrived_QN) {
  const int64_t row_bytes = own_RN.dim(1) * dtype_bytes(own_RN.dtype());
  set_parts(row_bytes);
  const std::span<const std::byte> own(own_RN.bytes(), static_cast<size_t>(own_RN.size_bytes()));
  const NetworkGroup::Ticket arrival =
      rail_.all_to_all(own, own_parts_, box_.as<std::byte>(), box_parts_, {kRows});
  copy_runs(/*of_own_node=*/true, own.data(), arrived_QN.bytes(), row_bytes, /*back=*/false);
  rail_.wait(arrival);
  copy_runs(/*of_own_node=*/false, box_.data(), arrived_QN.bytes(), row_bytes, /*back=*/false);
}

void ExpertRail::give_back(ConstTensorView arrived_QN, TensorView own_RN) {
  const int64_t row_bytes = own_RN.dim(1) * dtype_bytes(own_RN.dtype());
  set_parts(row_bytes);
  const std::span<std::byte> own(own_RN.bytes(), static_cast<size_t>(own_RN.size_bytes()));
  copy_runs(/*of_own_node=*/false, arrived_QN.bytes(), box_.data(), row_bytes, /*back=*/true);
  const NetworkGroup::Ticket arrival =
      rail_.all_to_all(box_.as<const std::byte>(), box_parts_, own, own_parts_, {kRows});
  copy_runs(/*of_own_node=*/true, arrived_QN.bytes(), own.data(), row_bytes, /*back=*/true);
  rail_.wait(arrival);
}

}  // namespace tessera
