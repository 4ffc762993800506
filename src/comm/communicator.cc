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

struct Communicator::Impl {
  explicit Impl(const World& job, const CommOptions& comm_options)
      : world(job), options(comm_options), position(RankPosition::of_rank(job.position_file)) {
    position.mark(Activity::kWork, {.what = kMeetingRanks});
    if (!world.is_single()) {
      StoreOptions store_options = options.store;
      if (world.rendezvous_timeout_s > 0) {
        store_options.rendezvous_timeout = std::chrono::seconds(world.rendezvous_timeout_s);
      }
      if (world.heartbeat_timeout_ms > 0) {
        set_heartbeat_timeout(&store_options, std::chrono::milliseconds(world.heartbeat_timeout_ms));
      }
      store = StoreClient::join(world, store_options);
    }
    try {
      open_groups();
    } catch (const Error& error) {
      report_failure(error);
      throw;
    }
  }

  explicit Impl(Impl& job) : world(node_as_job(job.world)), options(job.options), whole_job(&job) {
    node = job.node;
    rail.emplace(fmt::format("node of rank {}", job.world.rank), std::vector{world.rank}, world.rank, nullptr,
                 NetworkOptions{}, failures());
    allocate_values();
  }

  void open_groups() {
    if (world.num_nodes > 1) choose_transport();
    NetworkOptions network = network_options();
    network.position = &position;
    node = std::make_shared<NodeGroup>(world, NodeGroupOptions{options.timeout, &position}, failures());
    rail.emplace(fmt::format("rail {}", world.local_rank), rail_ranks(world, 0, world.num_nodes), world.rank,
                 store.get(), network, failures());
    allocate_values();
  }

  void allocate_values() {
    values = node->allocate("values of all ranks", 2 * world.world_size * kMaxValueBytes);
    board = node->allocate("board", kBoardBytes);
    rail_values.resize(static_cast<size_t>(world.num_nodes * kMaxValueBytes));
  }

  NetworkOptions network_options() const {
    NetworkOptions network;
    network.timeout = options.timeout;
    network.connections = options.connections;
    network.fabric = options.fabric;
    return network;
  }

  void choose_transport() {
    options.fabric = choose_fabric(options.fabric);
    if (world.rank != 0 || options.fabric == kTcpFabric) return;
    log_info(
        "network between nodes: fabric {}, which neither encrypts nor authenticates messages and relies on "
        "the "
        "isolation of the network",
        options.fabric);
  }

  void report_failure(const Error& error) {
    const bool is_known = dynamic_cast<const PeerError*>(&error) != nullptr;
    if (store && !is_known) store->report_own_failure(error.code(), error.what());
  }

  // In the table of the last gather().
  std::byte* row(int rank) {
    return values.data() + (num_gathers % 2 * world.world_size + rank) * kMaxValueBytes;
  }
  FailureDetector& failures() {
    return whole_job ? whole_job->failures() : store ? store->failures() : alone;
  }

  World world;
  CommOptions options;
  RankPosition position;
  FailureDetector alone;
  std::unique_ptr<StoreClient> store;
  Impl* whole_job = nullptr;  // of which this is a node
  std::shared_ptr<NodeGroup> node;
  // A group beside the rail, opened when it is needed.
  struct ExtraRail {
    std::optional<NetworkGroup> group;
    std::atomic<NetworkGroup*> opened = nullptr;  // for other threads
  };
  NetworkGroup& open(ExtraRail& extra, const char* name, int first_node, int num_nodes) {
    if (extra.group) return *extra.group;
    extra.group.emplace(fmt::format("{} {} from node {}", name, world.local_rank, first_node),
                        rail_ranks(world, first_node, num_nodes), world.rank, store.get(), network_options(),
                        failures());
    extra.opened = &*extra.group;
    return *extra.group;
  }

  std::optional<NetworkGroup> rail;
  ExtraRail background, context;
  PageBuffer values;  // [2][world_size][kMaxValueBytes]
  PageBuffer board;
  std::vector<std::byte> rail_values;
  std::vector<Part> parts;
  int64_t num_gathers = 0;
};

Communicator::Communicator() = default;
Communicator::~Communicator() = default;

std::unique_ptr<Communicator> Communicator::open(const World& world, const CommOptions& options) {
  std::unique_ptr<Communicator> communicator(new Communicator);
  communicator->impl_ = std::make_unique<Impl>(world, options);
  return communicator;
}

std::unique_ptr<Communicator> Communicator::of_node(Communicator& job) {
  std::unique_ptr<Communicator> communicator(new Communicator);
  communicator->impl_ = std::make_unique<Impl>(*job.impl_);
  return communicator;
}

const World& Communicator::world() const { return impl_->world; }
const CommOptions& Communicator::options() const { return impl_->options; }
FailureDetector& Communicator::failures() { return impl_->failures(); }
RankPosition& Communicator::position() {
  return impl_->whole_job ? impl_->whole_job->position : impl_->position;
}
StoreClient* Communicator::store() { return impl_->store.get(); }
NodeGroup& Communicator::node() { return *impl_->node; }
NetworkGroup& Communicator::rail() { return *impl_->rail; }

NetworkGroup& Communicator::open_background_rail() {
  return impl_->open(impl_->background, "background rail", 0, impl_->world.num_nodes);
}

NetworkGroup* Communicator::background_rail() const { return impl_->background.opened; }

NetworkGroup& Communicator::open_context_rail(int first_node, int num_nodes) {
  return impl_->open(impl_->context, "context rail", first_node, num_nodes);
}

NetworkGroup* Communicator::context_rail() const { return impl_->context.opened; }

double Communicator::waited_s() const {
  double waited_s = impl_->node->waited_s() + impl_->rail->counters().wait_s;
  for (const Impl::ExtraRail* extra : {&impl_->background, &impl_->context}) {
    if (extra->group) waited_s += extra->group->counters().wait_s;
  }
  return waited_s;
}

// Exchanges along the rails first, then every rank of a node reads the same table. Two tables alternate, so
// nobody overwrites one that a slower rank is still reading.
void Communicator::gather(std::span<const std::byte> own, const OpLabel& label) {
  Impl& impl = *impl_;
  const World& world = impl.world;
  const int64_t size = std::ssize(own);
  TESSERA_CHECK(size <= kMaxValueBytes, "a value of {} bytes", size);
  ++impl.num_gathers;
  if (world.num_nodes > 1) {
    impl.parts.clear();
    for (int node = 0; node < world.num_nodes; ++node) {
      impl.parts.push_back({node * size, (node + 1) * size});
    }
    std::copy(own.begin(), own.end(), impl.rail_values.begin() + world.node_rank * size);
    impl.rail->wait(impl.rail->all_gather(
        std::span(impl.rail_values).first(static_cast<size_t>(world.num_nodes * size)), impl.parts, label));
    for (int node = 0; node < world.num_nodes; ++node) {
      std::copy_n(impl.rail_values.begin() + node * size, size,
                  impl.row(node * world.local_world_size + world.local_rank));
    }
  } else {
    std::copy(own.begin(), own.end(), impl.row(world.rank));
  }
  if (!world.is_single()) impl.node->barrier(label);
}

const std::byte* Communicator::gathered(int rank) const { return impl_->row(rank); }

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
  Impl& impl = *impl_;
  const World& world = impl.world;
  if (world.is_single()) return;
  const int root_node = root / world.local_world_size;
  const int root_local = root % world.local_world_size;
  if (world.num_nodes > 1 && world.local_rank == root_local) {
    impl.rail->wait(impl.rail->broadcast(data, root_node, label));
  }
  for (size_t begin = 0; begin < data.size(); begin += kBoardBytes) {
    const std::span<std::byte> piece =
        data.subspan(begin, std::min<size_t>(kBoardBytes, data.size() - begin));
    if (world.local_rank == root_local) std::memcpy(impl.board.data(), piece.data(), piece.size());
    impl.node->barrier(label);
    if (world.local_rank != root_local) std::memcpy(piece.data(), impl.board.data(), piece.size());
    impl.node->barrier(label);
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
  impl_->node->set_timeout(timeout);
  impl_->rail->set_timeout(timeout);
  for (Impl::ExtraRail* extra : {&impl_->background, &impl_->context}) {
    if (extra->group) extra->group->set_timeout(timeout);
  }
}

void Communicator::check_same_settings(const std::map<std::string, std::string>& settings) {
  if (impl_->store) impl_->store->check_same_settings(settings);
}

void Communicator::report_failure(const Error& error) { impl_->report_failure(error); }

void Communicator::leave() {
  if (impl_->store) impl_->store->leave();
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
