// Cases of the simulation whose result is known in closed form, and laws that hold for all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "forecast/simulation/cluster_simulation.h"
#include "forecast/simulation/failures.h"
#include "forecast/simulation/fair_share.h"

namespace tessera {
namespace {

constexpr int kSteps = 4;

// A step with an all-gather of `bytes` in all, which it waits for, after `compute_s` or overlapped with it.
StepProgram gather_program(double bytes, int num_nodes, double compute_s, bool overlaps = false) {
  StepProgram program;
  const Action computing = {ActionKind::kCompute, compute_s, 0};
  for (int step = 0; step < kSteps; ++step) {
    if (!overlaps) program.actions.push_back(computing);
    program.actions.push_back({ActionKind::kIssue, 0, step});
    if (overlaps) program.actions.push_back(computing);
    program.actions.push_back({ActionKind::kWait, 0, step});
    program.actions.push_back({ActionKind::kStepEnd});
    program.transfers.push_back({TransferKind::kGather, step, bytes / num_nodes, 4});
    program.stands_for.push_back(step + 1 == kSteps ? 1 : 0);
  }
  return program;
}

Topology plain(int num_nodes) {
  Topology topology;
  topology.num_nodes = topology.nodes_per_rack = num_nodes;
  topology.nic_bytes_per_s = 1e9;
  topology.latency_s = 0;
  return topology;
}

std::vector<double> equal_nodes(int num_nodes) {
  return std::vector<double>(static_cast<size_t>(num_nodes), 1);
}

// The headers of messages are below this share of what is sent here.
constexpr double kHeaders = 1e-5;

TEST(SimulatedGather, TakesAllOtherNodesBytesAtTheSpeedOfTheCard) {
  for (const int nodes : {2, 3, 4, 48, 64, 1024}) {
    const double bytes = 64e9;
    const SimulatedStep step =
        simulate_steps(plain(nodes), gather_program(bytes, nodes, 0), equal_nodes(nodes));
    const double expected_s = bytes * (nodes - 1) / nodes / 1e9;
    EXPECT_NEAR(step.step_s / expected_s, 1, kHeaders) << nodes;
    EXPECT_NEAR(step.of(Bottleneck::kNic), step.step_s, 1e-9);
    EXPECT_NEAR(step.node_sent_bytes, bytes * (nodes - 1) / nodes, 1) << nodes;
    EXPECT_EQ(step.bottleneck(), Bottleneck::kNic);
  }
}

TEST(SimulatedGather, IsHiddenByLongerComputation) {
  const StepProgram program = gather_program(8e9, 4, /*compute_s=*/7, /*overlaps=*/true);
  const SimulatedStep step = simulate_steps(plain(4), program, equal_nodes(4));
  EXPECT_DOUBLE_EQ(step.step_s, 7);
  EXPECT_NEAR(step.network_s, 6, 1e-4);
  EXPECT_EQ(step.bottleneck(), Bottleneck::kCompute);
  const SimulatedStep shorter = simulate_steps(plain(4), gather_program(8e9, 4, 5, true), equal_nodes(4));
  EXPECT_NEAR(shorter.step_s, 6, 1e-4);
  EXPECT_NEAR(shorter.of(Bottleneck::kNic), 1, 1e-4);
}

// Four steps of one second that stand for 10 of a steady state after as many before that; in the second of
// each half a gather of 6 seconds begins that nothing waits for until the fourth, and every step gathers
// values.
StepProgram background_program() {
  StepProgram program;
  const auto issue = [&](const SimulatedTransfer& transfer) {
    program.actions.push_back({ActionKind::kIssue, 0, std::ssize(program.transfers)});
    program.transfers.push_back(transfer);
    return std::ssize(program.transfers) - 1;
  };
  int64_t gather = 0;
  for (int step = 0; step < 8; ++step) {
    program.actions.push_back({ActionKind::kCompute, 1, 0});
    program.actions.push_back({ActionKind::kWait, 0, issue({TransferKind::kValues, step, 1, 1})});
    if (step % 4 == 1) gather = issue({TransferKind::kGather, step, 2e9, 4, SimulatedLane::kBackground});
    if (step % 4 == 3) program.actions.push_back({ActionKind::kWait, 0, gather});
    program.actions.push_back({ActionKind::kStepEnd});
    program.stands_for.push_back(step < 4 ? 0 : step == 4 ? 7 : 1);
  }
  return program;
}

TEST(SimulatedGather, InTheBackgroundHoldsUpNoOtherOperation) {
  const SimulatedStep step = simulate_steps(plain(4), background_program(), equal_nodes(4));
  // One of ten steps has a six-second exchange; two of these seconds overlap computation.
  EXPECT_NEAR(step.step_s, (10 + 4) / 10.0, 1e-4);
  EXPECT_NEAR(step.of(Bottleneck::kCompute), 1, 1e-9);
  EXPECT_NEAR(step.of(Bottleneck::kNic), 0.4, 1e-4);
  EXPECT_NEAR(step.network_s, 0.6, 1e-4);
  EXPECT_NEAR(step.node_sent_bytes, 6e9 / 10, 1);
}

TEST(SimulatedGather, InTheBackgroundStillMeetsTheSlowestNodeInEveryStep) {
  const SimulatedStep step = simulate_steps(plain(4), background_program(), {1, 1, 1.5, 1});
  EXPECT_NEAR(step.step_s, (10 * 1.5 + 6 - 2 * 1.5) / 10.0, 1e-4);
}

TEST(SimulatedGather, PaysTheLatencyOfEveryOperation) {
  Topology topology = plain(3);
  topology.latency_s = 0.25;
  const SimulatedStep step = simulate_steps(topology, gather_program(3e9, 3, 1), equal_nodes(3));
  EXPECT_NEAR(step.step_s, 1 + 2 + 0.25, 1e-4);
  EXPECT_NEAR(step.of(Bottleneck::kLatency), 0.25, 1e-9);
}

TEST(SimulatedGather, IsSlowedByAnOversubscribedUplink) {
  // 4 racks of 4: a rack sends 4 parts to 12 nodes each through its uplink, a node 3 + 12 parts.
  Topology topology = plain(16);
  topology.nodes_per_rack = 4;
  topology.oversubscription = 5;
  const double part = 1e9;
  const StepProgram program = gather_program(16 * part, 16, 0);
  const double uplink_s = 48 * part / (4e9 / 5);
  const SimulatedStep step = simulate_steps(topology, program, equal_nodes(16));
  EXPECT_NEAR(step.step_s / uplink_s, 1, kHeaders);
  EXPECT_EQ(step.bottleneck(), Bottleneck::kUplink);
  EXPECT_NEAR(step.uplink_sent_bytes, 48 * part, 1);
  topology.oversubscription = 1;
  EXPECT_NEAR(simulate_steps(topology, program, equal_nodes(16)).step_s, 15, 1e-3);
}

TEST(SimulatedGather, IsLimitedByTheCapOfAPairsConnections) {
  Topology topology = plain(2);
  topology.flow_bytes_per_s = 0.1e9;
  topology.connections = 3;
  const SimulatedStep step = simulate_steps(topology, gather_program(6e9, 2, 0), equal_nodes(2));
  EXPECT_NEAR(step.step_s, 3e9 / 0.3e9, 1e-4);
  EXPECT_EQ(step.bottleneck(), Bottleneck::kFlow);
}

TEST(SimulatedGather, IsLimitedByTheProcessorsThatHandleItsMessages) {
  Topology topology = plain(101);
  topology.message_s = 1e-3;
  topology.num_threads = 2;
  // 100 peers, 4 messages in and 4 out with each; a byte is sent in no time.
  const SimulatedStep step = simulate_steps(topology, gather_program(101e3, 101, 0), equal_nodes(101));
  EXPECT_NEAR(step.step_s, 100 * 4 * 1e-3 / 2, 1e-6);
  EXPECT_EQ(step.bottleneck(), Bottleneck::kProcessor);
}

TEST(SimulatedNodes, AreAllDelayedByExactlyTheExcessOfTheSlowest) {
  for (const int nodes : {4, 48, 512}) {
    const StepProgram program = gather_program(4e9, nodes, /*compute_s=*/10);
    std::vector<double> slowdowns = equal_nodes(nodes);
    const double base_s = simulate_steps(plain(nodes), program, slowdowns).step_s;
    slowdowns[2] = 1.5;
    const SimulatedStep step = simulate_steps(plain(nodes), program, slowdowns);
    EXPECT_NEAR(step.step_s, base_s + 5, 1e-6) << nodes;
    EXPECT_GT(step.of(Bottleneck::kOthers), 0) << nodes;
  }
}

// A program of a few computations and transfers, some waited for at once, some later.
StepProgram drawn_program(std::mt19937& random, int num_nodes) {
  std::uniform_real_distribution<double> uniform(0, 1);
  struct Drawn {
    double compute_s, bytes, messages;
    TransferKind kind;
    bool waits;
  };
  std::vector<Drawn> all(5);
  for (Drawn& each : all) {
    each = {uniform(random), 4e9 * uniform(random), 1 + std::floor(9 * uniform(random)),
            uniform(random) < 0.5 ? TransferKind::kGather : TransferKind::kReduce, uniform(random) < 0.5};
  }
  StepProgram program;
  for (int step = 0; step < kSteps; ++step) {
    for (const Drawn& each : all) {
      const int64_t number = std::ssize(program.transfers);
      program.actions.push_back({ActionKind::kCompute, each.compute_s, 0});
      program.actions.push_back({ActionKind::kIssue, 0, number});
      program.transfers.push_back({each.kind, step, each.bytes / num_nodes, each.messages});
      if (each.waits) program.actions.push_back({ActionKind::kWait, 0, number});
    }
    program.actions.push_back({ActionKind::kWait, 0, std::ssize(program.transfers) - 1});
    program.actions.push_back({ActionKind::kStepEnd});
    program.stands_for.push_back(step + 1 == kSteps ? 1 : 0);
  }
  return program;
}

Topology drawn_topology(std::mt19937& random, int num_nodes) {
  std::uniform_real_distribution<double> uniform(0, 1);
  Topology topology = plain(num_nodes);
  topology.nodes_per_rack = std::uniform_int_distribution<int>(1, num_nodes)(random);
  topology.oversubscription = 1 + 4 * uniform(random);
  topology.flow_bytes_per_s = 1e8 + 1e9 * uniform(random);
  topology.connections = std::uniform_int_distribution<int>(1, 8)(random);
  topology.latency_s = 1e-3 * uniform(random);
  topology.message_s = 1e-5 * uniform(random);
  topology.gather_byte_s = 4e-10;
  topology.reduce_byte_s = 6e-10;
  return topology;
}

TEST(SimulatedSteps, ConserveTimeAndBytesAndAreRepeatable) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int nodes = std::uniform_int_distribution<int>(2, 12)(random);
    const StepProgram program = drawn_program(random, nodes);
    const Topology topology = drawn_topology(random, nodes);
    const std::vector<double> slowdowns =
        seed % 2 == 0 ? equal_nodes(nodes) : drawn_slowdowns(nodes, 0.2, seed);
    const SimulatedStep step = simulate_steps(topology, program, slowdowns);
    EXPECT_NEAR(std::accumulate(step.seconds, step.seconds + kNumBottlenecks, 0.0), step.step_s, 1e-6)
        << seed;
    EXPECT_NEAR(step.node_sent_bytes / program.sent_bytes(kSteps - 2, nodes), 1, 1e-9) << seed;
    EXPECT_GE(step.step_s, program.last_compute_s() - 1e-6) << seed;
    EXPECT_EQ(simulate_steps(topology, program, slowdowns).step_s, step.step_s) << seed;
  }
}

TEST(SimulatedSteps, AreNeverSlowerOnABetterNetwork) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int nodes = std::uniform_int_distribution<int>(2, 100)(random);
    const StepProgram program = drawn_program(random, nodes);
    const Topology topology = drawn_topology(random, nodes);
    const double base_s = simulate_steps(topology, program, equal_nodes(nodes)).step_s;
    std::vector<Topology> better(6, topology);
    better[0].nic_bytes_per_s *= 1.5;
    better[1].oversubscription = 1;
    better[2].flow_bytes_per_s *= 2;
    better[3].latency_s = 0;
    better[4].message_s /= 2;
    better[5].connections += 2;
    for (size_t i = 0; i < better.size(); ++i) {
      EXPECT_LE(simulate_steps(better[i], program, equal_nodes(nodes)).step_s, base_s * (1 + 1e-9))
          << "seed " << seed << ", improvement " << i;
    }
  }
}

TEST(SimulatedSteps, AreTheSameNodeByNodeAndInGroups) {
  std::mt19937 random(7);
  for (int i = 0; i < 5; ++i) {
    const StepProgram program = drawn_program(random, kMaxExactNodes);
    const Topology topology = [&] {
      Topology drawn = drawn_topology(random, kMaxExactNodes);
      drawn.nodes_per_rack = 12;
      return drawn;
    }();
    const double grouped_s = simulate_steps(topology, program, equal_nodes(kMaxExactNodes)).step_s;
    // A difference too small to matter makes every node a case of its own.
    std::vector<double> slowdowns = equal_nodes(kMaxExactNodes);
    slowdowns[5] = 1 + 1e-9;
    EXPECT_NEAR(simulate_steps(topology, program, slowdowns).step_s / grouped_s, 1, 1e-6);
  }
}

TEST(FairShare, FillsEveryLinkThatAFlowWants) {
  // Link 0 (capacity 1) has flows a and b, link 1 (capacity 4) b and c, d has a cap of its own.
  const FlowBundle a = {{{0, 1}}}, b = {{{0, 1}, {1, 1}}}, c = {{{1, 1}}}, d = {{{1, 1}}, 0.25};
  FairSharing sharing({1, 4});
  std::vector<FairShare> shares;
  const FlowBundle* const bundles[] = {&a, &b, &c, &d};
  sharing.solve(bundles, &shares);
  EXPECT_DOUBLE_EQ(shares[0].rate, 0.5);
  EXPECT_DOUBLE_EQ(shares[1].rate, 0.5);
  EXPECT_DOUBLE_EQ(shares[2].rate, 3.25);
  EXPECT_DOUBLE_EQ(shares[3].rate, 0.25);
  EXPECT_EQ(shares[1].limit, 0u);
  EXPECT_EQ(shares[2].limit, 1u);
  EXPECT_EQ(shares[3].limit, FairShare::kOwnCap);
}

TEST(UsefulTime, FollowsDalysExpectation) {
  FailureInputs inputs;
  inputs.node_mtbf_s = 64 * 20'000.0;
  inputs.detection_s = 10;
  inputs.restart_s = 90;
  inputs.checkpoint_stall_s = 20;
  inputs.checkpoint_write_s = 20;
  const double step_s = 5, down_s = 100, failure_s = 20'000;
  for (const int64_t steps : {20, 100, 400, 2000}) {
    // Daly (2006), "A higher order estimate of the optimum checkpoint interval", equation 13.
    const double work_s = static_cast<double>(steps) * step_s;
    const double expected =
        work_s / (failure_s * std::exp(down_s / failure_s) * std::expm1((work_s + 20) / failure_s));
    EXPECT_NEAR(useful_time(inputs, 64, step_s, steps).useful_share, expected, 0.005) << steps;
  }
}

TEST(UsefulTime, IsBestAtYoungsInterval) {
  FailureInputs inputs;
  inputs.node_mtbf_s = 16 * 50'000.0;
  inputs.checkpoint_stall_s = 10;
  inputs.checkpoint_write_s = 10;
  const UsefulTime best = best_useful_time(inputs, 16, /*step_s=*/2);
  const double young_s = std::sqrt(2 * 10 * 50'000.0);
  EXPECT_NEAR(static_cast<double>(best.checkpoint_steps) * 2 / young_s, 1, 0.15);
  // Half of what is between two checkpoints.
  EXPECT_NEAR(best.repeated_steps / (0.5 * static_cast<double>(best.checkpoint_steps)), 1, 0.05);
  EXPECT_GE(best.useful_share, useful_time(inputs, 16, 2, std::llround(young_s / 2)).useful_share - 1e-3);
}

TEST(UsefulTime, FallsWithTheRateOfFailuresAndTheTimeOfACheckpoint) {
  FailureInputs inputs;
  inputs.node_mtbf_s = 1e6;
  inputs.checkpoint_stall_s = 5;
  inputs.checkpoint_write_s = 60;
  double last = 1;
  for (const int nodes : {1, 4, 16, 64, 256, 1024}) {
    const double share = best_useful_time(inputs, nodes, 10).useful_share;
    EXPECT_LT(share, last) << nodes;
    last = share;
  }
  const double before = useful_time(inputs, 64, 10, 50).useful_share;
  inputs.checkpoint_write_s = 400;
  EXPECT_LT(useful_time(inputs, 64, 10, 50).useful_share, before);
  inputs.node_mtbf_s = 1;  // never up for long enough
  EXPECT_EQ(useful_time(inputs, 64, 10, 50).useful_share, 0);
}

}  // namespace
}  // namespace tessera
