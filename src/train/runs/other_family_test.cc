// Training treats parameters, gradients and checkpoints of any family alike, not just Llama's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_writer.h"
#include "expect_error.h"
#include "model/llama/llama_generator.h"
#include "shard/parameter_store.h"
#include "support/train/bigram_model.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

constexpr uint64_t kSeed = 3;

struct BigramRun {
  std::vector<double> losses;  // of all ranks' rows, before each update
  std::vector<float> masters;  // after the last
};

// Trains from random weights, or from a checkpoint of `from`, up to a checkpoint of step `to`.
class BigramTraining {
 public:
  BigramTraining(const Ranks& ranks, DType dtype, std::string schedule = "per_step")
      : ranks_(ranks), dtype_(dtype), per_layer_(schedule == "per_layer") {}

  BigramRun run(int64_t from, int64_t to) {
    BigramRun result;
    run_ranks(ranks_, [&](Communicator& comm) { run_rank(comm, from, to, &result); });
    return result;
  }

 private:
  ZeroSettings settings() const {
    ZeroSettings zero;
    zero.schedule = per_layer_ ? GatherSchedule::kPerLayer : GatherSchedule::kPerStep;
    zero.weight_dtype = dtype_;
    zero.network_dtype = DType::kF32;
    zero.persistence_threshold = 0;
    return zero;
  }

  CheckpointPlan plan(const TrainableModel& model, StateTensors state_tensors, int64_t step, int rank) const {
    CheckpointPlan plan;
    plan.folder = folder_.path() / ("checkpoint-" + std::to_string(step));
    plan.config = &model.config();
    plan.layout = &model.layout();
    plan.state_tensors = state_tensors;
    plan.rank = rank;
    plan.world_size = ranks_.world_size();
    return plan;
  }

  static void start(const TrainableModel& model, StoreState& state) {
    const std::vector<float> weights = random_weights(model.layout(), 0.3f, kSeed);
    for (const ElementRange& range : state.kept()) {
      const auto count = static_cast<size_t>(range.end - range.begin);
      state.write(StateKind::kMaster, range.begin,
                  std::span(weights).subspan(static_cast<size_t>(range.begin), count));
    }
    state.written();
  }

  void resume(const TrainableModel& model, StoreState& state, int64_t step, ThreadPool& pool) const {
    const CheckpointReader reader = CheckpointReader::open(plan(model, {}, step, 0).folder);
    reader.load(
        model.layout(), state.tensors(), state.kept(),
        [&](StateKind kind, int64_t begin, std::span<const float> values) {
          state.write(kind, begin, values);
        },
        pool);
    state.written();
  }

  void save(const TrainableModel& model, StoreState& state, int64_t step, Communicator& comm,
            ThreadPool& pool) const {
    const int rank = comm.world().rank;
    const CheckpointPlan checkpoint = plan(model, state.tensors(), step, rank);
    if (rank == 0) create_checkpoint(checkpoint);
    comm.barrier({"created"});
    const StateSource source = [&](StateKind kind, int64_t begin, std::span<float> values) {
      state.read(kind, begin, values);
    };
    CheckpointWriter(checkpoint, state.owned(), source, {}, pool).wait();
    comm.barrier({"written"});
    if (rank == 0) commit_checkpoint(checkpoint, {step, "{}", "{}", "{}"});
    comm.barrier({"committed"});
  }

  void run_rank(Communicator& comm, int64_t from, int64_t to, BigramRun* result) const {
    ThreadPool pool(1);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    BigramModel model(bigram_config(), dtype_, *ops);
    ParameterStore parameters(model, settings(), make_optimizer({.form = OptimizerForm::kAdamW}), false, comm,
                              pool);
    const auto rows = random_rows({9, 12, 7, 10}, bigram_config().vocab_size, kSeed);
    const int64_t num_targets = pack(rows).num_targets;
    // Each rank takes every world_size-th row.
    std::vector<TokenRow> own;
    for (size_t i = static_cast<size_t>(comm.world().rank); i < rows.size();
         i += static_cast<size_t>(ranks_.world_size())) {
      own.push_back(rows[i]);
    }
    const PackedBatch batch = pack(own);
    ActivationLimits limits = limits_of(batch);
    limits.pack_weights = !per_layer_;
    model.reserve(limits);
    from == 0 ? start(model, parameters.state()) : resume(model, parameters.state(), from, pool);
    for (int64_t step = from; step < to; ++step) {
      const WeightUpdate update = parameters.begin_pass(/*is_first=*/true, PassKind::kLastPass);
      double loss = model.forward_backward(batch, 1.0f / static_cast<float>(num_targets), 0, update).loss_sum;
      parameters.end_pass();
      const double norm = std::sqrt(comm.sum(parameters.gradient_squares(), {"norm"}));
      loss = comm.sum(loss, {"loss"}) / static_cast<double>(num_targets);
      if (comm.world().rank == 0) result->losses.push_back(loss);
      parameters.update({.step = step + 1, .learning_rate = 0.02, .gradient_scale = std::min(1.0, 1 / norm)},
                        {});
    }
    save(model, parameters.state(), to, comm, pool);
    parameters.state().export_masters([&](const WeightSource& source) {
      result->masters.resize(static_cast<size_t>(model.layout().num_parameters()));
      size_t end = 0;
      for (const Parameter& parameter : model.layout().parameters()) {
        const auto count = static_cast<size_t>(parameter.num_elements);
        source(parameter.offset, std::span(result->masters).subspan(end, count));
        end += count;
      }
    });
  }

  Ranks ranks_;
  DType dtype_;
  bool per_layer_;
  TestFolder folder_;
};

TEST(OtherFamily, GradientsEqualFiniteDifferences) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  BigramModel model(bigram_config(), DType::kF32, *ops);
  const int64_t size = model.layout().num_elements();
  std::vector<float> weights = random_weights(model.layout(), 0.3f, kSeed), gradients(weights.size());
  model.bind_parameters({weights.data(), DType::kF32, {size}}, {gradients.data(), DType::kF32, {size}});
  const PackedBatch batch = pack(random_rows({9, 12}, bigram_config().vocab_size, kSeed));
  model.reserve(limits_of(batch));
  double squares = 0;
  const LossSums sums = model.forward_backward(batch, 1, 0, {Update::kOverwrite, &squares});
  EXPECT_EQ(sums.num_targets, batch.num_targets);
  EXPECT_EQ(sums.loss_sum, model.forward_loss(batch).loss_sum);
  const double expected_squares = sum_of_squares(model.layout(), gradients);
  EXPECT_NEAR(squares, expected_squares, 1e-12 * expected_squares);

  // Some 20 token losses of about 4, each rounded to float32, make the loss wrong by up to 80 x 2^-24, and a
  // third derivative below 1 the central difference by up to step^2 / 6.
  constexpr float kStep = 0x1p-6f;
  constexpr double kBound = 80 * 0x1p-24 / kStep + kStep * kStep / 6;
  double largest = 0;
  for (const Parameter& parameter : model.layout().parameters()) {
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
      float& weight = weights[static_cast<size_t>(i)];
      const float original = weight;
      weight = original + kStep;
      const double above = model.forward_loss(batch).loss_sum;
      weight = original - kStep;
      const double below = model.forward_loss(batch).loss_sum;
      weight = original;
      const double found = gradients[static_cast<size_t>(i)];
      ASSERT_NEAR(found, (above - below) / (2 * kStep), kBound) << parameter.name << " element " << i;
      largest = std::max(largest, std::abs(found));
    }
  }
  EXPECT_GT(largest, 100 * kBound);
}

TEST(OtherFamily, LearnsOnOneRankAndOnSeveral) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const BigramRun alone = BigramTraining({1, 1}, dtype).run(0, 60);
    EXPECT_LT(alone.losses.back(), alone.losses.front() / 2) << dtype_name(dtype);
    for (const char* schedule : {"per_step", "per_layer"}) {
      for (const Ranks& ranks : {Ranks{1, 2}, Ranks{2, 1}}) {
        if (ranks.num_nodes == 1 && std::string(schedule) == "per_layer") continue;
        const BigramRun sharded = BigramTraining(ranks, dtype, schedule).run(0, 60);
        ASSERT_EQ(sharded.losses.size(), alone.losses.size());
        // Other batches and another order of sums: in BF16 a weight may be rounded the other way.
        const double bound = dtype == DType::kF32 ? 1e-5 : 0.01;
        for (size_t i = 0; i < alone.losses.size(); ++i) {
          EXPECT_NEAR(sharded.losses[i], alone.losses[i], bound * alone.losses[i])
              << dtype_name(dtype) << " " << schedule << " " << ranks.num_nodes << " nodes, step " << i;
        }
      }
    }
  }
}

TEST(OtherFamily, ResumesToTheSameBits) {
  for (const Ranks& ranks : {Ranks{1, 1}, Ranks{1, 2}, Ranks{2, 1}}) {
    const BigramRun whole = BigramTraining(ranks, DType::kBF16).run(0, 8);
    BigramTraining cut(ranks, DType::kBF16);
    const BigramRun first = cut.run(0, 5);
    EXPECT_NE(first.masters, whole.masters);
    const BigramRun rest = cut.run(5, 8);
    EXPECT_EQ(rest.masters, whole.masters) << ranks.num_nodes << "x" << ranks.local_world_size;
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 5, whole.losses.end()));
  }
}

TEST(OtherFamily, TextIsGeneratedWithLlamasOnly) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  BigramModel model(bigram_config(), DType::kF32, *ops);
  expect_error(ExitCode::kBadConfig, {"Llama-family models only"}, [&] { LlamaGenerator(model, 8); });
}

}  // namespace
}  // namespace tessera
