#include "forecast/simulation/cluster_simulation.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "comm/network/link/wire_message.h"
#include "comm/network/network_group.h"
#include "forecast/simulation/fair_share.h"

namespace tessera {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxGroups = 12;  // of nodes of similar speed

// Nodes that are simulated as one.
struct NodeClass {
  double count = 1;
  double slowdown = 1;
  int rack = -1;  // -1: spread evenly over all racks
};

std::vector<NodeClass> classes_of(const Topology& topology, std::vector<double> slowdowns) {
  TESSERA_CHECK(std::ssize(slowdowns) == topology.num_nodes, "{} nodes, {} slowdowns", topology.num_nodes,
                slowdowns.size());
  const bool all_equal =
      std::ranges::adjacent_find(slowdowns, std::ranges::not_equal_to()) == slowdowns.end();
  const bool even_racks = topology.num_nodes % topology.nodes_per_rack == 0;
  std::vector<NodeClass> classes;
  if (topology.num_nodes <= kMaxExactNodes && !(all_equal && even_racks)) {
    for (int node = 0; node < topology.num_nodes; ++node) {
      classes.push_back({1, slowdowns[static_cast<size_t>(node)], node / topology.nodes_per_rack});
    }
    return classes;
  }
  std::ranges::sort(slowdowns, std::ranges::greater());
  for (const double slowdown : slowdowns) {
    if (classes.empty() || classes.back().slowdown != slowdown) {
      classes.push_back({0, slowdown, -1});
    }
    ++classes.back().count;
  }
  if (std::ssize(classes) <= kMaxGroups) return classes;
  classes = {{1, slowdowns.front(), -1}};
  const int64_t others = std::ssize(slowdowns) - 1;
  for (int64_t group = 0; group + 1 < kMaxGroups; ++group) {
    const int64_t begin = 1 + others * group / (kMaxGroups - 1);
    const int64_t end = 1 + others * (group + 1) / (kMaxGroups - 1);
    const double sum = std::accumulate(slowdowns.begin() + begin, slowdowns.begin() + end, 0.0);
    const auto count = static_cast<double>(end - begin);
    classes.push_back({count, sum / count, -1});
  }
  return classes;
}

// The share of a node's peers that are in its own rack, over all nodes.
double share_in_rack(const Topology& topology) {
  double pairs = 0;
  for (int rack = 0; rack < topology.num_racks(); ++rack) {
    const double nodes =
        std::min(topology.nodes_per_rack, topology.num_nodes - rack * topology.nodes_per_rack);
    pairs += nodes * (nodes - 1);
  }
  const double all = topology.num_nodes;
  return all > 1 ? pairs / (all * (all - 1)) : 1;
}

class Simulation {
 public:
  Simulation(const Topology& topology, const StepProgram& program, const std::vector<double>& slowdowns)
      : topology_(topology),
        program_(program),
        in_rack_(share_in_rack(topology)),
        nodes_(classes_of(topology, slowdowns).size()),
        sharing_(capacities(std::ssize(nodes_))) {
    const std::vector<NodeClass> classes = classes_of(topology, slowdowns);
    for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i].kind = classes[i];
    for (size_t i = 1; i < nodes_.size(); ++i) {
      if (nodes_[i].kind.count > nodes_[typical_].kind.count) typical_ = i;
    }
    for (const NodeClass& each : classes) spread_ |= each.rack < 0;
    result_.is_exact = !spread_ || nodes_.size() == 1;
    for (int64_t number = 0; number < std::ssize(program.transfers); ++number) {
      std::vector<int64_t>& of_lane = transfers_[lane_of(number)];
      place_in_lane_.push_back(std::ssize(of_lane));
      of_lane.push_back(number);
    }
    num_alike_ = std::accumulate(program.stands_for.begin(), program.stands_for.end(), 0.0);
    TESSERA_CHECK(std::ranges::count(program.actions, ActionKind::kStepEnd, &Action::kind) ==
                      std::ssize(program.stands_for),
                  "{} steps are weighted", program.stands_for.size());
    TESSERA_CHECK(num_alike_ > 0 && program.stands_for.front() == 0, "no steps until the steady state");
  }

  SimulatedStep run() {
    while (std::ranges::any_of(nodes_, [&](const Node& node) { return !has_ended(node); })) {
      bool progress = false;
      for (Node& node : nodes_) progress |= advance(node);
      progress |= start_operations();
      if (!progress) pass_time();
    }
    const std::vector<double>& ends = nodes_[typical_].step_ends;
    for (size_t step = 1; step < ends.size(); ++step) {
      result_.step_s += program_.stands_for[step] / num_alike_ * (ends[step] - ends[step - 1]);
    }
    return result_;
  }

 private:
  // A node's progress in the operations of a lane, which run one after another.
  struct Progress {
    int64_t issued = 0;
    int64_t completed = 0;
    bool in_operation = false;
    int64_t flows_left = 0;
    double arrives_at = kNever;  // end of the operation: all flows are over
  };
  struct Node {
    NodeClass kind;
    size_t next_action = 0;
    double computes_until = kNever;
    Progress lanes[kNumLanes];
    std::vector<double> step_ends;
  };
  struct Flow {
    int64_t transfer;
    size_t from, to;
    double left;   // bytes
    bool crosses;  // racks
    FlowBundle bundle;
  };

  // Resources: out, in and processor of each class of nodes, then out and in of each rack (of one for all, if
  // classes are spread over the racks).
  enum ResourceKind : size_t { kOut, kIn, kProcessor, kNumOfNode };
  static size_t of_node(size_t node, ResourceKind kind) { return node * kNumOfNode + kind; }
  size_t uplink(int rack, bool out) const {
    return nodes_.size() * kNumOfNode + 2 * static_cast<size_t>(std::max(rack, 0)) + (out ? 0 : 1);
  }
  std::vector<double> capacities(int64_t num_classes) const {
    std::vector<double> all;
    for (int64_t i = 0; i < num_classes; ++i) {
      all.insert(all.end(), {topology_.nic_bytes_per_s, topology_.nic_bytes_per_s, topology_.num_threads});
    }
    all.resize(all.size() + 2 * static_cast<size_t>(topology_.num_racks()), topology_.uplink_bytes_per_s());
    return all;
  }

  bool has_ended(const Node& node) const { return node.next_action == program_.actions.size(); }
  bool is_computing(const Node& node) const { return node.computes_until != kNever; }

  // Whether the node could do anything now.
  bool advance(Node& node) {
    bool progress = false;
    while (!has_ended(node) && !is_computing(node)) {
      const Action& action = program_.actions[node.next_action];
      if (action.kind == ActionKind::kCompute) {
        node.computes_until = now_ + action.seconds * node.kind.slowdown;
      } else if (action.kind == ActionKind::kOther) {
        node.computes_until = now_ + action.seconds;
      } else if (action.kind == ActionKind::kIssue) {
        Progress& lane = node.lanes[lane_of(action.transfer)];
        if (lane.issued - lane.completed >= NetworkGroup::kMaxRunning) return progress;
        ++lane.issued;
      } else if (action.kind == ActionKind::kWait) {
        const Progress& lane = node.lanes[lane_of(action.transfer)];
        if (lane.completed <= place_in_lane_[static_cast<size_t>(action.transfer)]) return progress;
      } else {
        node.step_ends.push_back(now_);
      }
      ++node.next_action;
      progress = true;
    }
    return progress;
  }

  bool start_operations() {
    bool any = false;
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      for (size_t i = 0; i < nodes_.size(); ++i) {
        const Progress& own = nodes_[i].lanes[lane];
        if (own.in_operation || own.completed == own.issued) continue;
        start_operation(i, lane);
        any = true;
      }
    }
    return any;
  }
  void start_operation(size_t i, size_t lane) {
    Progress& own = nodes_[i].lanes[lane];
    own.in_operation = true;
    own.flows_left = 0;
    const int64_t transfer = transfers_[lane][static_cast<size_t>(own.completed)];
    for (size_t j = 0; j < nodes_.size(); ++j) {
      own.flows_left += num_variants(i, j) + (i == j ? 0 : num_variants(j, i));
      const Progress& other = nodes_[j].lanes[lane];
      if (!other.in_operation || other.completed != own.completed) continue;
      start_flows(transfer, i, j);
      if (i != j) start_flows(transfer, j, i);
    }
  }

  // Peers of a node of class i in class j.
  double num_peers(size_t i, size_t j) const { return nodes_[j].kind.count - (i == j ? 1 : 0); }
  // The flows from i to j: within a rack, between racks, or both.
  bool has_variant(size_t i, size_t j, bool crosses) const {
    if (num_peers(i, j) <= 0) return false;
    if (spread_) return crosses ? in_rack_ < 1 : in_rack_ > 0;
    return crosses == (nodes_[i].kind.rack != nodes_[j].kind.rack);
  }
  int64_t num_variants(size_t i, size_t j) const {
    return (has_variant(i, j, false) ? 1 : 0) + (has_variant(i, j, true) ? 1 : 0);
  }

  void start_flows(int64_t number, size_t from, size_t to) {
    const SimulatedTransfer& transfer = program_.transfers[static_cast<size_t>(number)];
    for (const bool crosses : {false, true}) {
      if (!has_variant(from, to, crosses)) continue;
      Flow flow;
      flow.transfer = number;
      flow.from = from;
      flow.to = to;
      flow.left = transfer.pair_bytes + transfer.pair_messages * static_cast<double>(sizeof(WireHeader));
      flow.crosses = crosses;
      flow.bundle = bundle_of(from, to, crosses, transfer, flow.left);
      flows_.push_back(std::move(flow));
    }
    shares_are_known_ = false;
  }

  FlowBundle bundle_of(size_t from, size_t to, bool crosses, const SimulatedTransfer& transfer,
                       double bytes) const {
    const double variant = spread_ ? (crosses ? 1 - in_rack_ : in_rack_) : 1;
    const double receivers = variant * num_peers(from, to), senders = variant * num_peers(to, from);
    const double byte_s =
        transfer.kind == TransferKind::kReduce ? topology_.reduce_byte_s : topology_.gather_byte_s;
    const double end_s = 0.5 * (byte_s + topology_.message_s * transfer.pair_messages / bytes);  // per byte
    FlowBundle bundle;
    bundle.uses = {{of_node(from, kOut), receivers}, {of_node(to, kIn), senders}};
    if (end_s > 0) {
      bundle.uses.push_back({of_node(from, kProcessor), receivers * end_s});
      bundle.uses.push_back({of_node(to, kProcessor), senders * end_s});
    }
    if (crosses) {
      const double racks = spread_ ? topology_.num_racks() : 1;
      bundle.uses.push_back(
          {uplink(nodes_[from].kind.rack, true), receivers * nodes_[from].kind.count / racks});
      bundle.uses.push_back({uplink(nodes_[to].kind.rack, false), senders * nodes_[to].kind.count / racks});
    }
    bundle.cap = topology_.flow_bytes_per_s * std::min<double>(topology_.connections, transfer.pair_messages);
    return bundle;
  }

  // Lets time pass until something ends.
  void pass_time() {
    if (!shares_are_known_) {
      bundles_.clear();
      for (const Flow& flow : flows_) bundles_.push_back(&flow.bundle);
      sharing_.solve(bundles_, &shares_);
      shares_are_known_ = true;
    }
    double next = kNever;
    for (const Node& node : nodes_) {
      next = std::min(next, node.computes_until);
      for (const Progress& lane : node.lanes) next = std::min(next, lane.arrives_at);
    }
    for (size_t i = 0; i < flows_.size(); ++i) {
      next = std::min(next, now_ + flows_[i].left / shares_[i].rate);
    }
    TESSERA_CHECK(next < kNever, "the simulated nodes wait for one another");
    account(next - now_);
    move_bytes(next - now_);
    now_ = next;
    for (Node& node : nodes_) {
      if (node.computes_until <= now_) node.computes_until = kNever;
      for (Progress& lane : node.lanes) {
        if (lane.arrives_at > now_) continue;
        lane.arrives_at = kNever;
        lane.in_operation = false;
        ++lane.completed;
      }
    }
  }

  void move_bytes(double seconds) {
    constexpr double kRoundingS = 1e-9;
    size_t kept = 0;
    for (size_t i = 0; i < flows_.size(); ++i) {
      Flow& flow = flows_[i];
      flow.left -= shares_[i].rate * seconds;
      if (flow.left > kRoundingS * shares_[i].rate) {
        if (kept != i) flows_[kept] = std::move(flow);
        ++kept;
        continue;
      }
      finish(flow, now_ + seconds);
    }
    if (kept == flows_.size()) return;
    flows_.resize(kept);
    shares_are_known_ = false;
  }

  void finish(const Flow& flow, double at) {
    count_bytes(flow);
    for (const size_t end : {flow.from, flow.to}) {
      Progress& lane = nodes_[end].lanes[lane_of(flow.transfer)];
      if (--lane.flows_left == 0) lane.arrives_at = at + topology_.latency_s;
      if (flow.from == flow.to) break;
    }
  }

  // Counts those issued in the steps before the steady ones, whose transfers are all over at the end.
  void count_bytes(const Flow& flow) {
    const SimulatedTransfer& transfer = program_.transfers[static_cast<size_t>(flow.transfer)];
    const size_t next = static_cast<size_t>(transfer.step) + 1;
    const bool counts = next < program_.stands_for.size() && program_.stands_for[next] > 0;
    if (!counts || transfer.kind == TransferKind::kValues) return;
    const double variant = spread_ ? (flow.crosses ? 1 - in_rack_ : in_rack_) : 1;
    const double bytes = transfer.pair_bytes * nodes_[flow.from].kind.count * variant *
                         num_peers(flow.from, flow.to) / num_alike_;
    result_.node_sent_bytes += bytes / topology_.num_nodes;
    if (flow.crosses) result_.uplink_sent_bytes += bytes / topology_.num_racks();
  }

  // Accounts `seconds` to what the typical node is doing, if its step counts.
  void account(double seconds) {
    const Node& node = nodes_[typical_];
    if (has_ended(node)) return;
    const double share = program_.stands_for[node.step_ends.size()] / num_alike_;
    if (share == 0) return;
    if (std::ranges::any_of(node.lanes, &Progress::in_operation)) result_.network_s += share * seconds;
    result_.seconds[static_cast<int>(activity(node))] += share * seconds;
  }
  Bottleneck activity(const Node& node) const {
    if (is_computing(node)) return Bottleneck::kCompute;
    const size_t lane = lane_of(program_.actions[node.next_action].transfer);
    if (node.lanes[lane].arrives_at != kNever) return Bottleneck::kLatency;
    for (size_t i = 0; i < flows_.size(); ++i) {
      if (lane_of(flows_[i].transfer) != lane) continue;
      if (flows_[i].from == typical_ || flows_[i].to == typical_) return limit_of(shares_[i].limit);
    }
    return Bottleneck::kOthers;
  }
  Bottleneck limit_of(size_t resource) const {
    if (resource == FairShare::kOwnCap) return Bottleneck::kFlow;
    if (resource >= nodes_.size() * kNumOfNode) return Bottleneck::kUplink;
    return resource % kNumOfNode == kProcessor ? Bottleneck::kProcessor : Bottleneck::kNic;
  }

  size_t lane_of(int64_t transfer) const {
    return static_cast<size_t>(program_.transfers[static_cast<size_t>(transfer)].lane);
  }

  const Topology& topology_;
  const StepProgram& program_;
  std::vector<int64_t> transfers_[kNumLanes];  // by lane, in the order of issue
  std::vector<int64_t> place_in_lane_;         // by transfer
  double in_rack_;
  std::vector<Node> nodes_;  // one for each class
  FairSharing sharing_;
  bool spread_ = false;
  size_t typical_ = 0;
  double num_alike_ = 0;  // steps that the simulated ones stand for
  double now_ = 0;
  std::vector<Flow> flows_;
  bool shares_are_known_ = false;
  std::vector<const FlowBundle*> bundles_;
  std::vector<FairShare> shares_;
  SimulatedStep result_;
};

}  // namespace

std::vector<double> drawn_slowdowns(int num_nodes, double spread, uint64_t seed) {
  const CounterRng random(seed, hash_name("slowdown of nodes"));
  std::vector<double> slowdowns;
  for (int node = 0; node < num_nodes; ++node) {
    slowdowns.push_back(std::exp(spread * static_cast<double>(random.normal(static_cast<uint64_t>(node)))));
  }
  return slowdowns;
}

std::string_view bottleneck_name(Bottleneck bottleneck) {
  constexpr std::string_view kNames[kNumBottlenecks] = {"compute",   "NIC",     "uplink",    "one flow",
                                                        "processor", "latency", "slow nodes"};
  return kNames[static_cast<int>(bottleneck)];
}

Bottleneck SimulatedStep::bottleneck() const {
  constexpr double kMuch = 0.02;
  int most = static_cast<int>(Bottleneck::kCompute);
  double most_s = kMuch * step_s;
  for (int kind = most + 1; kind < kNumBottlenecks; ++kind) {
    if (seconds[kind] <= most_s) continue;
    most = kind;
    most_s = seconds[kind];
  }
  return static_cast<Bottleneck>(most);
}

SimulatedStep simulate_steps(const Topology& topology, const StepProgram& program,
                             const std::vector<double>& slowdowns) {
  return Simulation(topology, program, slowdowns).run();
}

}  // namespace tessera
