// Restarted ranks resume from the snapshots of their state in memory: the same bits on the same ranks, with
// nothing on disk.
#include "train/recovery/peer_snapshots.h"
#include "support/draws.h"
#include "support/train/from_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "base/unique_fd.h"
#include "expect_error.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The memory kept by the agents of some nodes.
class Agents {
 public:
  explicit Agents(const Ranks& ranks) : local_world_size_(ranks.local_world_size) {
    for (int node = 0; node < ranks.num_nodes; ++node) replace(node);
  }

  // The node is lost with everything it holds, and another one replaces it.
  void replace(int node) {
    for (int i = 0; i < local_world_size_ * kNumSnapshotSlots; ++i) {
      const size_t at = static_cast<size_t>(node * local_world_size_ * kNumSnapshotSlots + i);
      if (at == files_.size()) files_.emplace_back();
      files_[at] = memory_file("test");
    }
  }
  // The node does not come back; the nodes after it are renumbered.
  void remove(int node) {
    const auto first = files_.begin() + node * local_world_size_ * kNumSnapshotSlots;
    files_.erase(first, first + local_world_size_ * kNumSnapshotSlots);
  }

  std::vector<int> slots_of(const World& world) const {
    std::vector<int> slots;
    for (int i = 0; i < kNumSnapshotSlots; ++i) {
      slots.push_back(files_.at(static_cast<size_t>(world.rank * kNumSnapshotSlots + i)).get());
    }
    return slots;
  }
  // For one rank: the step held by each slot that is intact.
  std::vector<int64_t> steps_of(int rank) const {
    World world;
    world.rank = rank;
    ThreadPool pool(1);
    std::vector<int64_t> steps;
    for (const int fd : slots_of(world)) {
      const SnapshotSlot slot(fd);
      steps.push_back(slot.verify(pool) ? slot.content()->id.step : -1);
    }
    return steps;
  }
  // Damages a byte in the middle of a rank's state of a step.
  void damage(int rank, int64_t step) const {
    World world;
    world.rank = rank;
    for (const int fd : slots_of(world)) {
      const SnapshotSlot slot(fd);
      if (!slot.content() || slot.content()->id.step != step) continue;
      const int64_t middle = slot.content()->sizes.slot_bytes() / 2;
      std::byte value{};
      TESSERA_CHECK(pread(fd, &value, 1, middle) == 1);
      value ^= std::byte{1};
      TESSERA_CHECK(pwrite(fd, &value, 1, middle) == 1);
    }
  }

 private:
  int local_world_size_;
  std::vector<UniqueFd> files_;  // by rank
};

class PeerSnapshotsJob : public testing::Test {
 protected:
  PeerSnapshotsJob() {
    spec_ = tiny_.spec;
    spec_.data.shuffle = true;
    spec_.batch.rows_per_device = 1;
    spec_.batch.global_rows = 4;
    spec_.schedule.form = CosineSchedule();
    spec_.reporting.logging_steps = 2;
    spec_.saving.peer_snapshot_steps = 1;
    spec_.resume = parse_resume("auto");
    spec_.sharding.stage = 2;
  }

  struct Outcome {
    std::vector<RecordingObserver> observers;
    std::string error;  // the error that ended it
    const RecordingObserver& root() const { return observers.at(0); }
  };
  // Ends with an error on rank 0 in step `fatal_step`, before that step is kept anywhere; 0 = runs to
  // completion.
  Outcome start(const Ranks& ranks, const Agents& agents, int restart_count, int64_t fatal_step = 0) const {
    Outcome outcome;
    outcome.observers.resize(static_cast<size_t>(ranks.world_size()));
    outcome.observers[0].after_step = [fatal_step](const StepMetrics& metrics) {
      if (metrics.step == fatal_step) fail(ExitCode::kTryAgain, "the end of step {}", fatal_step);
    };
    RunSettings spec = spec_;
    spec.batch.accumulation_steps = accumulation_of_global_batch(
        spec.batch.global_rows.value(), spec.batch.rows_per_device, ranks.world_size());
    try {
      run_ranks(
          ranks,
          [&](Communicator& comm) {
            ThreadPool pool(1);
            Trainer trainer(spec, pool, outcome.observers[static_cast<size_t>(comm.world().rank)], comm);
            trainer.run();
          },
          restart_count, [&](const World& world) { return agents.slots_of(world); });
    } catch (const Error& error) {
      outcome.error = error.what();
    }
    return outcome;
  }
  std::map<std::string, std::vector<float>> weights() const { return read_tensors(spec_.output_dir); }
  // Weights of an undisturbed run, in its own folder.
  std::map<std::string, std::vector<float>> undisturbed(const Ranks& ranks) {
    const std::string output = spec_.output_dir;
    spec_.output_dir = tiny_.folder() / "undisturbed";
    const Outcome outcome = start(ranks, Agents(ranks), 0);
    EXPECT_EQ(outcome.error, "");
    const auto expected = weights();
    expected_losses_ = losses();
    fs::remove_all(spec_.output_dir);
    spec_.output_dir = output;
    return expected;
  }
  // By step, as logged over the whole run.
  std::map<int, double> losses() const {
    std::map<int, double> losses;
    const nlohmann::json state = read_json(fs::path(spec_.output_dir) / "trainer_state.json");
    for (const nlohmann::json& entry : state.at("log_history")) {
      if (entry.contains("loss")) losses[entry.at("step")] = entry.at("loss");
    }
    return losses;
  }
  std::vector<int> steps_in_metrics() const {
    std::vector<int> steps;
    for (const nlohmann::json& line : read_json_lines(fs::path(spec_.output_dir) / "metrics.jsonl")) {
      steps.push_back(line.at("step"));
    }
    return steps;
  }

  TinyRun tiny_;
  RunSettings spec_;
  std::map<int, double> expected_losses_;  // of undisturbed()
};

class PeerSnapshotsSameRanks : public PeerSnapshotsJob, public testing::WithParamInterface<RanksCase> {};

TEST_P(PeerSnapshotsSameRanks, GoOnWithTheSameBits) {
  const auto& [ranks, stage, schedule] = GetParam();
  spec_.sharding.stage = stage;
  spec_.sharding.gather_schedule = from_word(schedule);
  const auto expected = undisturbed(ranks);
  const Agents agents(ranks);
  EXPECT_THAT(start(ranks, agents, 0, 4).error, HasSubstr("the end of step 4"));
  // Twice: the second start's snapshots replace the first start's.
  const Outcome second = start(ranks, agents, 1, 5);
  EXPECT_EQ(second.root().resumed_step, 3);
  EXPECT_THAT(second.root().resumed_from, testing::StartsWith("node"));
  EXPECT_EQ(second.root().differences, "");
  const Outcome third = start(ranks, agents, 2);
  EXPECT_EQ(third.error, "");
  EXPECT_EQ(third.root().resumed_step, 4);
  EXPECT_EQ(weights(), expected);
  EXPECT_THAT(steps_in_metrics(), testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(expected_losses_.size(), 3u);
  EXPECT_EQ(losses(), expected_losses_);
  EXPECT_FALSE(fs::exists(fs::path(spec_.output_dir) / "latest"));
  for (const StepMetrics& metrics : third.root().steps) {
    EXPECT_EQ(metrics.peer_snapshot_s.has_value(), metrics.step > 5) << metrics.step;
  }
}

std::vector<RanksCase> all_cases() {
  std::vector<RanksCase> cases = cases_of_several_nodes();
  cases.push_back({{1, 1}, 0, "per_step"});
  cases.push_back({{1, 2}, 0, "per_step"});
  cases.push_back({{1, 3}, 2, "per_step"});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Jobs, PeerSnapshotsSameRanks, testing::ValuesIn(drawn_cases(all_cases())),
                         [](const auto& job) { return job.param.name(); });

class PeerSnapshotsLostNode : public PeerSnapshotsJob, public testing::WithParamInterface<RanksCase> {};

// Its ranks' states are on the next node; the last step's may not have arrived.
TEST_P(PeerSnapshotsLostNode, IsReplacedAndTheJobGoesOnWithTheSameBits) {
  const auto& [ranks, stage, schedule] = GetParam();
  spec_.sharding.stage = stage;
  spec_.sharding.gather_schedule = from_word(schedule);
  const auto expected = undisturbed(ranks);
  for (int node = 0; node < ranks.num_nodes; ++node) {
    Agents agents(ranks);
    start(ranks, agents, 0, 4);
    agents.replace(node);
    const Outcome second = start(ranks, agents, 1);
    EXPECT_EQ(second.error, "");
    EXPECT_GE(second.root().resumed_step, 2);
    EXPECT_EQ(weights(), expected);
    fs::remove_all(spec_.output_dir);
  }
}

// Sums are in a different order on other ranks: float32 rounding over 3 steps.
TEST_P(PeerSnapshotsLostNode, LeavesTheOthersToGoOnAlone) {
  const auto& [ranks, stage, schedule] = GetParam();
  spec_.sharding.stage = stage;
  spec_.sharding.gather_schedule = from_word(schedule);
  const auto expected = undisturbed(ranks);
  Agents agents(ranks);
  start(ranks, agents, 0, 4);
  agents.remove(ranks.num_nodes - 1);
  const Ranks fewer = {ranks.num_nodes - 1, ranks.local_world_size};
  const Outcome second = start(fewer, agents, 1, 5);
  const int64_t resumed = second.root().resumed_step;
  EXPECT_GE(resumed, 2);
  EXPECT_EQ(second.root().steps.at(0).step, resumed + 1);
  // The node comes back empty.
  agents.replace(ranks.num_nodes - 1);
  const Outcome third = start(ranks, agents, 2);
  EXPECT_EQ(third.error, "");
  EXPECT_GE(third.root().resumed_step, fewer.num_nodes == 1 ? 4 : 3);
  const auto found = weights();
  for (const auto& [name, values] : expected) {
    EXPECT_LT(relative_error(found.at(name), values), 2e-3) << name;
  }
  EXPECT_THAT(steps_in_metrics(), testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

INSTANTIATE_TEST_SUITE_P(Jobs, PeerSnapshotsLostNode,
                         testing::ValuesIn(drawn_cases(cases_of_several_nodes())),
                         [](const auto& job) { return job.param.name(); });

// The errors of quantized gradients are part of the state, except for a single node, which has none.
TEST_F(PeerSnapshotsJob, HoldTheErrorsOfQuantizedGradients) {
  const Ranks ranks = {2, 1};
  spec_.sharding.quantized_gradients = GradientCode::kInt4;
  spec_.saving.strategy = SaveStrategy::kSteps;  // under way while the snapshot is taken
  spec_.saving.steps = 2;
  const auto expected = undisturbed(ranks);
  Agents agents(ranks);
  start(ranks, agents, 0, 4);
  agents.replace(1);
  EXPECT_EQ(start(ranks, agents, 1, 5).error, "the end of step 5");
  EXPECT_EQ(start(ranks, agents, 2).error, "");
  EXPECT_EQ(weights(), expected);
  fs::remove_all(spec_.output_dir);

  agents = Agents(ranks);
  start(ranks, agents, 0, 4);
  agents.remove(1);
  EXPECT_EQ(start({1, 1}, agents, 1, 5).root().steps.at(0).step, 4);
  agents.replace(1);
  const Outcome third = start(ranks, agents, 2);
  EXPECT_EQ(third.error, "");
  EXPECT_EQ(third.root().resumed_step, 4);
  const auto found = weights();
  for (const auto& [name, values] : expected) {
    EXPECT_LT(relative_error(found.at(name), values), 2e-2) << name;
  }
}

TEST_F(PeerSnapshotsJob, TwoNeighboursLostAreTooMany) {
  const Ranks ranks = {3, 1};
  Agents agents(ranks);
  start(ranks, agents, 0, 4);
  agents.remove(2);
  agents.remove(1);
  const Outcome second = start({1, 1}, agents, 1, 2);
  EXPECT_EQ(second.root().resumed_step, -1);
  EXPECT_EQ(second.root().steps.at(0).step, 1) << "from scratch, as there is no checkpoint either";
}

TEST_F(PeerSnapshotsJob, DamagedStateGivesWayToTheOneBefore) {
  const Ranks ranks = {1, 2};
  const auto expected = undisturbed(ranks);
  Agents agents(ranks);
  start(ranks, agents, 0, 4);
  EXPECT_THAT(agents.steps_of(0), testing::UnorderedElementsAre(2, 3, -1, -1));
  agents.damage(1, 3);
  EXPECT_THAT(agents.steps_of(1), testing::UnorderedElementsAre(2, -1, -1, -1));
  const Outcome second = start(ranks, agents, 1, 4);
  EXPECT_EQ(second.root().resumed_step, 2);
  // The damaged slot has been rewritten.
  EXPECT_EQ(start(ranks, agents, 2).root().resumed_step, 3);
  EXPECT_EQ(weights(), expected);
}

TEST_F(PeerSnapshotsJob, DamagedStateIsTakenFromTheNeighbour) {
  const Ranks ranks = {2, 1};
  const auto expected = undisturbed(ranks);
  spec_.saving.peer_snapshot_steps =
      2;  // the snapshot of step 2 has arrived by the time that of step 4 is taken
  Agents agents(ranks);
  start(ranks, agents, 0, 5);
  agents.damage(0, 4);
  const Outcome second = start(ranks, agents, 1);
  EXPECT_THAT(second.root().resumed_step, testing::AnyOf(4, 2)) << "2 if that of 4 was in transit";
  EXPECT_EQ(second.error, "");
  EXPECT_EQ(weights(), expected);
}

TEST_F(PeerSnapshotsJob, NewerCheckpointWins) {
  spec_.saving.strategy = SaveStrategy::kSteps;
  spec_.saving.steps = 3;
  spec_.saving.in_background = false;
  spec_.saving.peer_snapshot_steps = 2;
  const Ranks ranks = {1, 2};
  const auto expected = undisturbed(ranks);
  const Agents agents(ranks);
  start(ranks, agents, 0, 4);
  const Outcome second = start(ranks, agents, 1, 5);
  EXPECT_EQ(second.root().resumed_step, 3);
  EXPECT_EQ(second.root().resumed_from, "") << "step 2 is in memory";
  const Outcome third = start(ranks, agents, 2);
  EXPECT_EQ(third.root().resumed_step, 4);
  EXPECT_EQ(third.root().resumed_from, "node 0");
  EXPECT_EQ(weights(), expected);
}

TEST_F(PeerSnapshotsJob, AnotherJobDoesNotUseThem) {
  const Ranks ranks = {1, 2};
  const Agents agents(ranks);
  start(ranks, agents, 0, 4);
  spec_.output_dir = tiny_.folder() / "another";
  const Outcome second = start(ranks, agents, 1, 2);
  EXPECT_EQ(second.root().resumed_step, -1);
  EXPECT_EQ(second.root().steps.at(0).step, 1);
}

// The texts of a short run fit into the rounding.
TEST_F(PeerSnapshotsJob, TakesTheMemoryThatIsPlanned) {
  for (const Ranks ranks : {Ranks{1, 2}, Ranks{2, 2}}) {
    const Agents agents(ranks);
    const Outcome outcome = start(ranks, agents, 0);
    int64_t held = 0;
    for (int rank = 0; rank < ranks.local_world_size; ++rank) {
      World world;
      world.rank = rank;
      for (const int fd : agents.slots_of(world)) held += SnapshotSlot(fd).held_bytes();
    }
    const std::vector<MemoryItem>& items = outcome.root().plan.memory.items;
    const auto item = std::ranges::find(items, "peer snapshots", &MemoryItem::name);
    ASSERT_NE(item, items.end());
    EXPECT_EQ(item->scope, MemoryScope::kNode);
    EXPECT_EQ(held, item->size_bytes);
    fs::remove_all(spec_.output_dir);
  }
}

TEST_F(PeerSnapshotsJob, NeedsAnAgentThatKeepsThem) {
  spec_.batch.accumulation_steps = 4;
  spec_.batch.global_rows.reset();
  expect_error(ExitCode::kBadConfig,
               {"peer_snapshot_steps", "tessera launch", "--max_restarts", "peer_snapshot_steps 0"}, [&] {
                 ThreadPool pool(1);
                 RecordingObserver observer;
                 Trainer trainer(spec_, pool, observer);
               });
}

}  // namespace
}  // namespace tessera
