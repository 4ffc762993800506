// Tests which rank reads which parts of a model's files, and that all have the same weights afterwards. Ranks
// are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "expect_error.h"
#include "ops/cpu_ops.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

struct LoadCase {
  DType file_dtype;
  DType dtype;
  ZeroSettings zero;

  std::string name() const {
    return fmt::format("{} files, {} weights, stage {}", dtype_name(file_dtype), dtype_name(dtype),
                       zero.stage);
  }
};

std::vector<LoadCase> load_cases() {
  std::vector<LoadCase> result;
  for (const DType file_dtype : {DType::kBF16, DType::kF32}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int stage : {1, 2, 3}) {
        ZeroSettings zero;
        zero.stage = stage;
        zero.weight_dtype = dtype;
        result.push_back({file_dtype, dtype, zero});
        if (stage < 3) continue;
        result.back().zero.schedule = GatherSchedule::kPerLayer;
      }
    }
  }
  return result;
}

struct Loaded {
  int64_t num_bytes = 0;       // read by all ranks together
  std::vector<float> masters;  // as rank 0 exports them
  double loss = 0;             // on the last node, whose weights come over the network
};

Loaded load(const std::filesystem::path& folder, const ModelConfig& config, const LoadCase& c,
            const Ranks& ranks, LoadOnce once) {
  Loaded result;
  std::vector<int64_t> num_bytes(static_cast<size_t>(ranks.world_size()));
  run_ranks(ranks, [&](Communicator& comm) {
    ThreadPool pool(1);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    LlamaModel model(config, c.dtype, *ops);
    ParameterStore parameters(model, c.zero, make_optimizer({.form = OptimizerForm::kAdamW}), false, comm,
                              pool);
    const PackedBatch batch = pack(random_rows({9}, config.vocab_size, 5));
    model.reserve(limits_of(batch));
    const SafetensorsModel file = SafetensorsModel::open(folder);
    int64_t& of_rank = num_bytes[static_cast<size_t>(comm.world().rank)];
    parameters.state().load(file, once, [&](const LoadProgress& progress) { of_rank = progress.bytes_done; });
    const double loss = model.forward_loss(batch).loss_sum;
    if (comm.world().rank == ranks.world_size() - 1) result.loss = loss;
    parameters.state().export_masters([&](const WeightSource& source) {
      for (const Parameter& parameter : model.layout().parameters()) {
        std::vector<float> values(static_cast<size_t>(parameter.num_elements));
        source(parameter.offset, values);
        result.masters.insert(result.masters.end(), values.begin(), values.end());
      }
    });
  });
  for (const int64_t count : num_bytes) result.num_bytes += count;
  return result;
}

TEST(LoadOnRanks, EveryByteIsReadOncePerNodeOrOncePerCluster) {
  const ModelConfig config = tiny_config();
  const int64_t num_parameters = parameter_layout(config).num_parameters();
  for (const LoadCase& c : load_cases()) {
    SCOPED_TRACE(c.name());
    const TestFolder folder;
    write_test_model(folder.path(), config, 0.3f, 1, c.file_dtype);
    const int64_t file_bytes = num_parameters * dtype_bytes(c.file_dtype);
    const Loaded alone = load(folder.path(), config, c, {1, 2}, LoadOnce::kPerNode);
    EXPECT_EQ(alone.num_bytes, file_bytes);
    for (const Ranks& ranks : {Ranks{2, 1}, Ranks{2, 2}, Ranks{3, 1}}) {
      for (const LoadOnce once : {LoadOnce::kPerNode, LoadOnce::kPerCluster}) {
        const bool shards_weights = c.zero.schedule == GatherSchedule::kPerLayer;
        const Loaded found = load(folder.path(), config, c, ranks, once);
        const bool is_read_once = shards_weights || once == LoadOnce::kPerCluster;
        EXPECT_EQ(found.num_bytes, is_read_once ? file_bytes : ranks.num_nodes * file_bytes);
        EXPECT_EQ(found.masters, alone.masters) << "bit by bit";
        EXPECT_EQ(found.loss, alone.loss);
      }
    }
  }
}

TEST(LoadOnRanks, TrainingIsTheSameWhoeverReads) {
  TinyRun run;
  run.spec.precision.dtype = DType::kBF16;
  run.spec.batch.rows_per_device = 1;  // 8 of the 14 rows per step
  run.spec.sharding.stage = 2;
  const auto by_node = train_ranks(run.spec, {2, 2});
  run.spec.sharding.load_once = LoadOnce::kPerCluster;
  const auto by_cluster = train_ranks(run.spec, {2, 2});
  ASSERT_EQ(by_cluster.front().steps.size(), by_node.front().steps.size());
  for (size_t i = 0; i < by_node.front().steps.size(); ++i) {
    EXPECT_EQ(by_cluster.front().steps[i].loss, by_node.front().steps[i].loss) << i;
    EXPECT_EQ(by_cluster.front().steps[i].grad_norm, by_node.front().steps[i].grad_norm) << i;
  }
}

TEST(LoadOnRanks, PerClusterNeedsAShardedOptimizer) {
  RunSettings spec;
  FlagTable table;
  declare_training_flags(&table, &spec);
  spec.sharding.load_once = LoadOnce::kPerCluster;
  spec.sharding.stage = 0;
  expect_error(ExitCode::kBadConfig, {"load_weights_once per_cluster needs zero_stage 1 or more, found 0"},
               [&] { spec = read_run_spec(table, spec, 2); });
  spec.sharding.stage = 1;
  spec = read_run_spec(table, spec, 2);
}

}  // namespace
}  // namespace tessera
