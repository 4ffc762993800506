#include "train/recovery/peer_snapshots.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "data/cache/content_hash.h"

namespace tessera {
namespace {

const OpLabel kPeerSnapshotLabel = {"peer snapshot"};

// Sent per operation, since the timeout applies to an operation: at a tenth of a gigabit per second some 20
// s.
constexpr int64_t kSentBytes = int64_t{256} << 20;

uint64_t random_key() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32) | random();
}

SnapshotSizes sizes_of(const std::vector<ElementRange>& ranges, StateTensors tensors,
                       const SnapshotTexts& texts) {
  SnapshotSizes sizes = {.num_state_tensors = std::ssize(tensors),
                         .num_ranges = std::ssize(ranges),
                         .num_elements = 0,
                         .run_bytes = std::ssize(texts.run),
                         .log_history_bytes = std::ssize(texts.log_history)};
  for (const ElementRange& range : ranges) sizes.num_elements += range.end - range.begin;
  return sizes;
}

}  // namespace

// One group per pair of neighbours in the ring of nodes; only one of the two sends.
class PeerSnapshots::Transfer {
 public:
  // Collective: groups are created in the order of their senders, to avoid waiting in a circle.
  Transfer(Communicator& comm, int before, int behind) {
    const World& world = comm.world();
    NetworkOptions options;
    options.timeout = comm.options().timeout;
    options.connections = comm.options().connections;
    options.fabric = comm.options().fabric;
    const auto connect = [&](int from, int to) {
      return std::make_unique<NetworkGroup>(fmt::format("snapshots of rank {}", from),
                                            std::vector<int>{from, to}, world.rank, comm.store(), options,
                                            comm.failures());
    };
    if (before < world.rank) from_before_ = connect(before, world.rank);
    to_behind_ = connect(world.rank, behind);
    if (before > world.rank) from_before_ = connect(before, world.rank);
  }

  void send(const SnapshotSlot& slot, int64_t bytes) { issue(*to_behind_, slot, bytes); }
  void receive(const SnapshotSlot& slot, int64_t bytes) { issue(*from_before_, slot, bytes); }
  void wait() {
    to_behind_->wait_for_all();
    from_before_->wait_for_all();
  }

 private:
  // Operations complete in order, so the header arrives after the rest.
  static void issue(NetworkGroup& group, const SnapshotSlot& slot, int64_t bytes) {
    constexpr int kSender = 0;
    const std::span<std::byte> body = slot.body(bytes);
    for (size_t begin = 0; begin < body.size(); begin += kSentBytes) {
      group.broadcast(body.subspan(begin, std::min<size_t>(kSentBytes, body.size() - begin)), kSender,
                      kPeerSnapshotLabel);
    }
    group.broadcast(slot.header(), kSender, kPeerSnapshotLabel);
  }

  std::unique_ptr<NetworkGroup> from_before_;
  std::unique_ptr<NetworkGroup> to_behind_;
};

PeerSnapshots::PeerSnapshots(Communicator& comm, ThreadPool& pool, const std::string& job)
    : comm_(&comm), pool_(&pool), job_(hash_text(job).low), start_key_(random_key()) {
  const World& world = comm.world();
  if (world.snapshot_slots.empty()) {
    fail(ExitCode::kBadConfig,
         "peer_snapshot_steps: no agent keeps the ranks' memory after they exit: start them with tessera "
         "launch and --max_restarts or a range for --nnodes, or use peer_snapshot_steps 0");
  }
  for (const int fd : world.snapshot_slots) slots_.emplace_back(fd);
  job_ = comm.broadcast(job_, 0, kPeerSnapshotLabel);
  start_key_ = comm.broadcast(start_key_, 0, kPeerSnapshotLabel);
}

PeerSnapshots::~PeerSnapshots() = default;

int64_t PeerSnapshots::held_bytes_of_node() const {
  const World& world = comm_->world();
  int64_t bytes = 0;
  for (const SnapshotSlot& slot : slots_) bytes += slot.held_bytes();
  const std::vector<int64_t> by_rank = comm_->all_gather(bytes, kPeerSnapshotLabel);
  const auto first = by_rank.begin() + world.node_rank * world.local_world_size;
  return std::accumulate(first, first + world.local_world_size, int64_t{0});
}

HeldSearch PeerSnapshots::find() {
  HeldSearch search = find_held_state(*comm_, *pool_, slots_, job_);
  if (!search.found) return search;
  for (const auto& places : search.found->places) {
    for (const HeldState::Place& place : places) {
      if (place.rank != comm_->world().rank) continue;
      const auto at = static_cast<size_t>(place.slot);
      is_needed_[at] = true;
      newest_[at / 2] = at % 2;
    }
  }
  return search;
}

int PeerSnapshots::rank_of_node(int node) const {
  const World& world = comm_->world();
  return (node + world.num_nodes) % world.num_nodes * world.local_world_size + world.local_rank;
}

void PeerSnapshots::open(const ParameterLayout& layout, const StoreState& state) {
  const World& world = comm_->world();
  state_ = &state;
  owned_ = without_gaps(layout, state.owned());
  const std::vector<int64_t> bytes =
      comm_->all_gather(sizes_of(owned_, state.tensors(), {}).slot_bytes(), kPeerSnapshotLabel);
  const int before = rank_of_node(world.node_rank - 1);
  for (size_t index : {0, 1}) {
    if (!is_needed_[2 * kOwn + index])
      slot(kOwn, index).prepare(bytes[static_cast<size_t>(world.rank)], *pool_);
    if (is_needed_[2 * kSent + index]) continue;
    if (has_peer()) {
      slot(kSent, index).prepare(bytes[static_cast<size_t>(before)], *pool_);
    } else {
      slot(kSent, index).clear();
    }
  }
  if (has_peer()) transfer_ = std::make_unique<Transfer>(*comm_, before, rank_of_node(world.node_rank + 1));
}

SnapshotId PeerSnapshots::id_of(int64_t step) const {
  const World& world = comm_->world();
  return {.job = job_,
          .start_key = start_key_,
          .start = world.restart_count,
          .step = step,
          .num_nodes = world.num_nodes,
          .local_world_size = world.local_world_size};
}

void PeerSnapshots::write(int64_t step, const std::function<SnapshotTexts()>& make_texts) {
  const Stopwatch time;
  const SnapshotTexts texts = comm_->world().rank == 0 ? make_texts() : SnapshotTexts();
  const World& world = comm_->world();
  const int64_t own_bytes = sizes_of(owned_, state_->tensors(), texts).slot_bytes();
  if (transfer_) transfer_->wait();
  // Once all ranks are here, the previous snapshot is complete everywhere.
  const std::vector<int64_t> bytes = comm_->all_gather(own_bytes, kPeerSnapshotLabel);
  if (num_written_++ == 1 && !has_peer()) {
    for (size_t index : {0, 1}) slot(kSent, index).clear();
  }
  SnapshotSlot& own = next_slot(kOwn);
  own.prepare(own_bytes, *pool_);
  if (transfer_) {
    const int64_t sent_bytes = bytes[static_cast<size_t>(rank_of_node(world.node_rank - 1))];
    next_slot(kSent).prepare(sent_bytes, *pool_);
    transfer_->receive(next_slot(kSent), sent_bytes);
  }
  own.write(
      id_of(step), world.rank, owned_, std::ssize(state_->tensors()),
      [this](StateKind kind, int64_t begin, std::span<float> values) { state_->read(kind, begin, values); },
      texts, *pool_);
  if (transfer_) transfer_->send(own, own_bytes);
  for (size_t& newest : newest_) newest = 1 - newest;
  stall_s_ = time.seconds();
}

void PeerSnapshots::finish() {
  if (transfer_) transfer_->wait();
  comm_->barrier(kPeerSnapshotLabel);
}

}  // namespace tessera
