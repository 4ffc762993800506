// Training over several hosts and ranks gives PyTorch's numbers, however it is distributed and launched.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "e2e/host_job.h"
#include "e2e/reference_case.h"
#include "e2e/tiny_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::HasSubstr;

struct Spread {
  int nodes;
  int ranks_per_node;
  const char* stage;
  const char* schedule;
  std::string name() const { return fmt::format("{}x{}_{}_{}", nodes, ranks_per_node, stage, schedule); }
};

class HostsTrain : public testing::Test {
 protected:
  bool has_hosts(int count) {
    hosts_.emplace(count);
    return hosts_->problem().empty();
  }

  // Trains the reference case; returns the output folder.
  fs::path train(const Spread& spread, const std::string& name, const std::string& dtype = "float32",
                 const std::vector<std::string>& launch_flags = {}) {
    const ReferenceShape shape = reference_shape(case_);
    const int rows = shape.batch * shape.accumulation;
    const fs::path output = folder_ / name;
    HostJobOptions options;
    options.num_nodes = spread.nodes;
    options.ranks_per_node = spread.ranks_per_node;
    options.launch_flags = launch_flags;
    // One row at a time: the maximum number of passes per step.
    options.command =
        reference_arguments(case_, output.string(), 1, rows / (spread.nodes * spread.ranks_per_node));
    options.command.insert(options.command.end(), {"--dtype", dtype, "--zero_stage", spread.stage,
                                                   "--gather_schedule", spread.schedule});
    HostJob job(*hosts_, options);
    if (!job.wait(60s)) return output;
    for (int node = 0; node < spread.nodes; ++node) {
      const ProcessResult result = job.agent(node).result();
      EXPECT_EQ(result.exit_code, 0) << spread.name() << " node " << node << "\n" << result.err;
    }
    return output;
  }

  void expect_pytorch(const std::vector<Spread>& spreads) {
    const auto widest = std::max_element(spreads.begin(), spreads.end(),
                                         [](const auto& a, const auto& b) { return a.nodes < b.nodes; });
    if (!has_hosts(widest->nodes)) GTEST_SKIP() << hosts_->problem();
    for (const Spread& spread : spreads) {
      SCOPED_TRACE(spread.name());
      const fs::path output = train(spread, spread.name());
      if (!HasFailure()) expect_float32_reference(case_, output);
    }
  }

  TemporaryFolder folder_;
  std::optional<Hosts> hosts_;
  fs::path case_ = reference_case("llama-wide-heads");
};

TEST_F(HostsTrain, OneHostEqualsPyTorch) {
  expect_pytorch({{1, 2, "2", "per_step"}, {1, 4, "3", "per_layer"}, {1, 4, "0", "per_step"}});
}

TEST_F(HostsTrain, OneRankOnEachHostEqualsPyTorch) {
  expect_pytorch(
      {{2, 1, "1", "per_step"}, {2, 1, "3", "per_layer"}, {4, 1, "2", "per_step"}, {4, 1, "3", "per_layer"}});
}

TEST_F(HostsTrain, TwoHostsOfTwoRanksEqualPyTorch) {
  expect_pytorch({{2, 2, "0", "per_step"},
                  {2, 2, "1", "per_step"},
                  {2, 2, "2", "per_step"},
                  {2, 2, "3", "per_step"},
                  {2, 2, "3", "per_layer"}});
}

TEST_F(HostsTrain, RepeatIsBitIdentical) {
  if (!has_hosts(2)) GTEST_SKIP() << hosts_->problem();
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Spread spread{2, 2, "3", "per_layer"};
    const fs::path first = train(spread, std::string("first_") + dtype, dtype);
    const fs::path second = train(spread, std::string("second_") + dtype, dtype);
    EXPECT_EQ(read_losses(first).loss, read_losses(second).loss);
    EXPECT_EQ(read_losses(first).grad_norm, read_losses(second).grad_norm);
    const std::string weights = read_file(first / "model.safetensors");
    EXPECT_FALSE(weights.empty());
    EXPECT_TRUE(weights == read_file(second / "model.safetensors"));
    if (dtype == std::string("bfloat16")) expect_bfloat16_reference(case_, first);
  }
}

// Text through the tokenizer, in bfloat16, over two hosts: the loss falls, and the model is complete.
TEST_F(HostsTrain, TextThroughTheTokenizer) {
  if (!has_hosts(2)) GTEST_SKIP() << hosts_->problem();
  const TinyModel tiny;
  HostJobOptions options;
  options.ranks_per_node = 2;
  options.command = tiny.train_arguments(
      "out", {"--dtype", "bfloat16", "--per_device_train_batch_size", "1", "--max_steps", "20"});
  HostJob job(*hosts_, options);
  ASSERT_TRUE(job.wait(60s));
  ASSERT_EQ(job.agent(0).result().exit_code, 0) << job.all_output();
  ASSERT_EQ(job.agent(1).result().exit_code, 0) << job.all_output();
  const std::vector<double> loss = read_losses(tiny.folder / "out").loss;
  ASSERT_EQ(loss.size(), 20u);
  EXPECT_LT(loss.back(), 0.8 * loss.front());
  // The address of each rank is logged once.
  EXPECT_THAT(job.agent(0).err(), HasSubstr("ranks 2-3 on host host1, address 10.77.0.2"));
  EXPECT_EQ(job.agent(1).out(), "") << job.agent(1).err();
  run_well({"eval", "--model", tiny.folder / "out", "--dataset", tiny.text_file, "--text_per_line"});
}

// The way Kubeflow Trainer v2 and PyTorchJob start pods: PET_* alone, or RANK and WORLD_SIZE alone.
TEST_F(HostsTrain, VariablesInPlaceOfFlags) {
  if (!has_hosts(2)) GTEST_SKIP() << hosts_->problem();
  const auto run = [&](const std::string& name, bool launched,
                       const std::function<std::vector<std::string>(int)>& environment) {
    const std::string output = folder_ / name;
    std::vector<std::unique_ptr<StartedProcess>> nodes;
    for (int node = 0; node < 2; ++node) {
      std::vector<std::string> argv = {tessera_binary()};
      if (launched) argv.emplace_back("launch");
      const std::vector<std::string> arguments = reference_arguments(case_, output, 1, 2);
      argv.insert(argv.end(), arguments.begin(), arguments.end());
      argv.insert(argv.end(), {"--dtype", "float32"});
      nodes.push_back(hosts_->start(node, argv, environment(node)));
    }
    for (const auto& node : nodes) {
      ASSERT_TRUE(node->wait(60s)) << node->err();
      EXPECT_EQ(node->result().exit_code, 0) << node->err();
    }
    expect_float32_reference(case_, output);
  };
  run("pet", true, [](int node) {
    return std::vector<std::string>{"PET_NNODES=2", "PET_NPROC_PER_NODE=1",
                                    fmt::format("PET_NODE_RANK={}", node), "PET_MASTER_ADDR=host0",
                                    "PET_MASTER_PORT=29400"};
  });
  run("rank", false, [](int node) {
    return std::vector<std::string>{fmt::format("RANK={}", node), "WORLD_SIZE=2", "MASTER_ADDR=host0",
                                    "MASTER_PORT=23456"};
  });
}

TEST_F(HostsTrain, MpirunStartsRanks) {
  if (!has_hosts(1)) GTEST_SKIP() << hosts_->problem();
  std::vector<std::string> argv = {"sh", "-c", "command -v mpirun"};
  const auto found = hosts_->start(0, argv);
  ASSERT_TRUE(found->wait(10s));
  if (found->result().exit_code != 0) GTEST_SKIP() << "no mpirun";
  const std::string output = folder_ / "mpi";
  argv = {"mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", tessera_binary()};
  const std::vector<std::string> arguments = reference_arguments(case_, output, 2, 1);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.insert(argv.end(), {"--dtype", "float32"});
  const auto mpirun = hosts_->start(0, argv);
  ASSERT_TRUE(mpirun->wait(60s)) << mpirun->err();
  ASSERT_EQ(mpirun->result().exit_code, 0) << mpirun->err();
  expect_float32_reference(case_, output);
}

}  // namespace
}  // namespace tessera
