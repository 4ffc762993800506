#include "comm/communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "comm/network/fabric/fabric_choice.h"

namespace tessera {
namespace {

// Bytes that a rank can pass to the others of its node at once.
constexpr int64_t kBoardBytes = 64 << 10;

std::vector<int> rail_ranks(const World& world, int first_node, int num_nodes) {
  std::vector<int> ranks;
  for (int node = first_node; node < first_node + num_nodes; ++node) {
    ranks.push_back(node * world.local_world_size + world.local_rank);
  }
  return ranks;
}

World node_as_job(const World& job) {
  World world = job;
  world.rank = job.local_rank;
  world.world_size = job.local_world_size;
  world.node_rank = 0;
  world.num_nodes = 1;
  return world;
}

}  // namespace

Communicator::Communicator(const World& world, const CommOptions& options)
    : world_(world), options_(options), position_(RankPosition::of_rank(world.position_file)) {
  position_.mark(Activity::kWork, {.what = kMeetingRanks});
  if (!world_.is_single()) {
    StoreOptions store_options = options_.store;
    if (world_.rendezvous_timeout_s > 0)
      store_options.rendezvous_timeout = std::chrono::seconds(world_.rendezvous_timeout_s);
    if (world_.heartbeat_timeout_ms > 0)
      set_heartbeat_timeout(&store_options, std::chrono::milliseconds(world_.heartbeat_timeout_ms));
    store_ = StoreClient::join(world_, store_options);
  }
  try {
    open_groups();
  } catch (const Error& error) {
    report_failure(error);
    throw;
  }
}

Communicator::Communicator(Communicator& job)
    : world_(node_as_job(job.world_)), options_(job.options_), job_(&job), node_(job.node_) {
  rail_.emplace(fmt::format("node of rank {}", job.world_.rank), std::vector{world_.rank}, world_.rank,
                nullptr, NetworkOptions{}, failures());
  allocate_values();
}

std::unique_ptr<Communicator> Communicator::open(const World& world, const CommOptions& options) {
  return std::unique_ptr<Communicator>(new Communicator(world, options));
}

std::unique_ptr<Communicator> Communicator::of_node(Communicator& job) {
  return std::unique_ptr<Communicator>(new Communicator(job));
}

void Communicator::open_groups() {
  if (world_.num_nodes > 1) {
    options_.fabric = choose_fabric(options_.fabric);
    if (world_.rank == 0 && !options_.fabric.is_tcp()) {
      log_info(
          "network between nodes: fabric {}, which neither encrypts nor authenticates messages and relies on "
          "the isolation of the network",
          options_.fabric.provider);
    }
  }
  NetworkOptions network = options_;
  network.position = &position_;
  node_ = std::make_shared<NodeGroup>(world_, NodeGroupOptions{options_.timeout, &position_}, failures());
  rail_.emplace(fmt::format("rail {}", world_.local_rank), rail_ranks(world_, 0, world_.num_nodes),
                world_.rank, store_.get(), network, failures());
  allocate_values();
}

void Communicator::allocate_values() {
  values_ = node_->allocate("values of all ranks", 2 * world_.world_size * kMaxValueBytes);
  board_ = node_->allocate("board", kBoardBytes);
  rail_values_.resize(static_cast<size_t>(world_.num_nodes * kMaxValueBytes));
}

NetworkGroup& Communicator::open(ExtraRail& extra, const char* name, int first_node, int num_nodes) {
  if (extra.group) return *extra.group;
  extra.group.emplace(fmt::format("{} {} from node {}", name, world_.local_rank, first_node),
                      rail_ranks(world_, first_node, num_nodes), world_.rank, store_.get(), options_,
                      failures());
  extra.opened = &*extra.group;
  return *extra.group;
}

NetworkGroup& Communicator::open_background_rail() {
  return open(background_, "background rail", 0, world_.num_nodes);
}

NetworkGroup& Communicator::open_token_rail(int first_node, int num_nodes) {
  return open(token_, "token rail", first_node, num_nodes);
}

double Communicator::waited_s() const {
  double waited_s = node_->waited_s() + rail_->counters().wait_s;
  for (const ExtraRail* extra : {&background_, &token_}) {
    if (extra->group) waited_s += extra->group->counters().wait_s;
  }
  return waited_s;
}

// All-gathers along the rails first, then every rank of a node reads the same table. Two tables alternate, so
// that no rank overwrites one that a slower rank is still reading.
void Communicator::gather(std::span<const std::byte> own, const OpLabel& label) {
  const int64_t size = std::ssize(own);
  TESSERA_CHECK(size <= kMaxValueBytes, "a value of {} bytes", size);
  ++num_gathers_;
  if (world_.num_nodes > 1) {
    parts_.clear();
    for (int node = 0; node < world_.num_nodes; ++node) parts_.push_back({node * size, (node + 1) * size});
    std::copy(own.begin(), own.end(), rail_values_.begin() + world_.node_rank * size);
    rail_->wait(rail_->all_gather(std::span(rail_values_).first(static_cast<size_t>(world_.num_nodes * size)),
                                  parts_, label));
    for (int node = 0; node < world_.num_nodes; ++node) {
      std::copy_n(rail_values_.begin() + node * size, size,
                  gathered(node * world_.local_world_size + world_.local_rank));
    }
  } else {
    std::copy(own.begin(), own.end(), gathered(world_.rank));
  }
  if (!world_.is_single()) node_->barrier(label);
}

void Communicator::sum(std::span<double> values, const OpLabel& label) {
  constexpr size_t kMaxValues = kMaxValueBytes / sizeof(double);
  for (size_t begin = 0; begin < values.size(); begin += kMaxValues) {
    const std::span<double> piece = values.subspan(begin, std::min(kMaxValues, values.size() - begin));
    gather(std::as_bytes(piece), label);
    std::ranges::fill(piece, 0.0);
    for (int rank = 0; rank < world().world_size; ++rank) {
      for (size_t i = 0; i < piece.size(); ++i) {
        double value;
        std::memcpy(&value, gathered(rank) + i * sizeof(double), sizeof(double));
        piece[i] += value;
      }
    }
  }
}

// A value from every rank means that every rank has arrived.
void Communicator::barrier(const OpLabel& label) {
  constexpr std::byte kNothing = {};
  gather(std::span(&kNothing, 1), label);
}

void Communicator::broadcast_bytes(std::span<std::byte> data, int root, const OpLabel& label) {
  if (world_.is_single()) return;
  const int root_node = root / world_.local_world_size;
  const bool is_on_rail = world_.local_rank == root % world_.local_world_size;
  if (world_.num_nodes > 1 && is_on_rail) rail_->wait(rail_->broadcast(data, root_node, label));
  for (size_t begin = 0; begin < data.size(); begin += kBoardBytes) {
    const std::span<std::byte> piece =
        data.subspan(begin, std::min<size_t>(kBoardBytes, data.size() - begin));
    if (is_on_rail) std::memcpy(board_.data(), piece.data(), piece.size());
    node_->barrier(label);
    if (!is_on_rail) std::memcpy(piece.data(), board_.data(), piece.size());
    node_->barrier(label);
  }
}

std::string Communicator::broadcast_text(std::string text, int root, const OpLabel& label) {
  text.resize(std::min(text.size(), kMaxTextBytes));
  struct {
    uint64_t size;
    std::array<char, kMaxTextBytes> text;
  } message = {text.size(), {}};
  std::copy(text.begin(), text.end(), message.text.begin());
  broadcast_bytes(std::as_writable_bytes(std::span(&message, 1)), root, label);
  return {message.text.data(), static_cast<size_t>(message.size)};
}

void Communicator::set_timeout(std::chrono::milliseconds timeout) {
  node_->set_timeout(timeout);
  rail_->set_timeout(timeout);
  for (ExtraRail* extra : {&background_, &token_}) {
    if (extra->group) extra->group->set_timeout(timeout);
  }
}

void Communicator::report_failure(const Error& error) {
  const bool is_known = dynamic_cast<const PeerError*>(&error) != nullptr;
  if (store_ && !is_known) store_->report_own_failure(error.code(), error.what());
}

PatientScope::PatientScope(Communicator& comm) : comm_(&comm) {
  constexpr std::chrono::hours kAsLongAsItTakes(24 * 7);
  comm_->set_timeout(kAsLongAsItTakes);
}

PatientScope::~PatientScope() { comm_->set_timeout(comm_->options().timeout); }

Communicator& single_process() {
  static const std::unique_ptr<Communicator> alone = Communicator::open({}, {});
  return *alone;
}

}  // namespace tessera
