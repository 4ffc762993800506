// The program that simulated nodes run does what zero and the trainer do.
#include "forecast/simulation/step_program.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "model/families/families.h"
#include "plan/memory_plan.h"
#include "shard/outer/outer_plan.h"

namespace tessera {
namespace {

MachineRates some_rates() {
  InstanceFigures inputs;
  inputs.num_cores = 16;
  inputs.clock_ghz = 2.5;
  inputs.amx = true;
  return rates_of_instance(inputs);
}

ModelConfig config_of(bool is_tied) {
  ModelConfig config = preset_config("15m");
  config.vocab_size = 4096;
  config.tie_word_embeddings = is_tied;
  return config;
}

StepInputs inputs_of(int num_nodes, int local_world_size, int stage, GatherSchedule schedule,
                     int64_t passes) {
  StepInputs inputs;
  inputs.row_tokens = 256;
  inputs.num_passes = passes;
  inputs.num_threads = 4;
  inputs.num_nodes = num_nodes;
  inputs.local_world_size = local_world_size;
  inputs.zero.stage = stage;
  inputs.zero.schedule = schedule;
  inputs.zero.passes_per_step = passes;
  return inputs;
}

// Calls body(layout, inputs, is_tied) for every way to shard.
template <typename Body>
void for_each_sharding(const Body& body) {
  for (const bool is_tied : {false, true}) {
    StepWalks walks(config_of(is_tied), DType::kBF16);
    for (const int nodes : {2, 3, 8}) {
      for (const int ranks : {1, 2}) {
        for (const int stage : {0, 1, 2, 3}) {
          for (const GatherSchedule schedule : {GatherSchedule::kPerStep, GatherSchedule::kPerLayer}) {
            if (schedule == GatherSchedule::kPerLayer && stage < 3) continue;
            for (const int64_t passes : {1, 3}) {
              SCOPED_TRACE(testing::Message() << nodes << " x " << ranks << ", stage " << stage
                                              << ", per layer " << (schedule == GatherSchedule::kPerLayer)
                                              << ", " << passes << " passes, tied " << is_tied);
              body(walks, inputs_of(nodes, ranks, stage, schedule, passes));
            }
          }
        }
      }
    }
  }
}

TEST(StepProgram, SendsTheBytesThatZeroSends) {
  for_each_sharding([](StepWalks& walks, const StepInputs& inputs) {
    RatedCosts op_costs(some_rates());
    const ZeroLayout layout = zero_layout(walks.layout(), inputs.num_nodes, inputs.local_world_size);
    const StepProgram program = step_program(layout, inputs.zero, step_costs(walks, inputs, op_costs),
                                             walks.config().tie_word_embeddings, 4);
    const WireBytes wire = wire_bytes_per_step(layout, inputs.zero, 0);
    // Parts differ by their alignment; the first node's are the largest.
    EXPECT_NEAR(program.sent_bytes(1, inputs.num_nodes) / static_cast<double>(wire.sent()), 1, 0.01);
  });
}

TEST(StepProgram, SendsTheBytesOfQuantizedGradients) {
  for (const GradientCode code : {GradientCode::kInt8, GradientCode::kInt4}) {
    StepWalks walks(config_of(/*is_tied=*/false), DType::kBF16);
    StepInputs inputs = inputs_of(3, 1, 2, GatherSchedule::kPerStep, 2);
    inputs.zero.quantized_gradients = code;
    RatedCosts op_costs(some_rates());
    const ZeroLayout layout = zero_layout(walks.layout(), inputs.num_nodes, inputs.local_world_size);
    const StepProgram program =
        step_program(layout, inputs.zero, step_costs(walks, inputs, op_costs), /*is_tied=*/false, 4);
    const WireBytes wire = wire_bytes_per_step(layout, inputs.zero, 0);
    EXPECT_NEAR(program.sent_bytes(1, inputs.num_nodes) / static_cast<double>(wire.sent()), 1, 0.01);
  }
}

// Settings of nodes that train on their own.
std::vector<OuterSettings> outer_settings() {
  std::vector<OuterSettings> all;
  for (const int64_t every : {1, 2, 7, 50}) {
    for (const int64_t fragments : {1, 3, 5}) {
      for (const int64_t delay : {0, 1, 2, 5}) {
        if (fragments > every || delay * fragments >= every) continue;
        all.push_back({.sync_every = every, .num_fragments = fragments, .sync_delay = delay});
      }
    }
  }
  return all;
}

TEST(StepProgram, SendsTheBytesOfNodesOnTheirOwnOnceARound) {
  StepWalks walks(config_of(/*is_tied=*/true), DType::kBF16);
  for (const OuterSettings& outer : outer_settings()) {
    for (const int ranks : {1, 2}) {
      for (const auto& code : {std::optional<GradientCode>(), std::optional(GradientCode::kInt4)}) {
        SCOPED_TRACE(testing::Message()
                     << "every " << outer.sync_every << ", " << outer.num_fragments << " fragments, delay "
                     << outer.sync_delay << ", " << ranks << " ranks");
        StepInputs inputs = inputs_of(3, ranks, 2, GatherSchedule::kPerStep, 2);
        inputs.zero.outer = outer;
        inputs.zero.quantized_gradients = code;
        RatedCosts op_costs(some_rates());
        const ZeroLayout layout = zero_layout(walks.layout(), inputs.num_nodes, inputs.local_world_size);
        const StepProgram program =
            step_program(layout, inputs.zero, step_costs(walks, inputs, op_costs), /*is_tied=*/true, 4);
        EXPECT_EQ(std::accumulate(program.stands_for.begin(), program.stands_for.end(), 0.0),
                  static_cast<double>(outer.sync_every));
        double sent = 0;
        for (int step = 0; step < std::ssize(program.stands_for); ++step) {
          if (program.stands_for[static_cast<size_t>(step)] > 0)
            sent += program.sent_bytes(step, inputs.num_nodes);
        }
        const WireBytes wire = outer_wire_bytes(layout, inputs.zero, /*node_rank=*/0);
        EXPECT_NEAR(sent / static_cast<double>(wire.sent()), 1, 0.01);
      }
    }
  }
}

TEST(StepProgram, ComputesWhatThePlanPredicts) {
  for_each_sharding([](StepWalks& walks, const StepInputs& inputs) {
    RatedCosts op_costs(some_rates());
    const ZeroLayout layout = zero_layout(walks.layout(), inputs.num_nodes, inputs.local_world_size);
    const StepCosts costs = step_costs(walks, inputs, op_costs);
    const StepProgram program =
        step_program(layout, inputs.zero, costs, walks.config().tie_word_embeddings, 4);
    const StepTime time = predict_step(walks, inputs, op_costs);
    EXPECT_NEAR(costs.passes_s() / (time.compute_s() * (1 + op_costs.imbalance())), 1, 1e-3);
    const double predicted_s = time.compute_s() + time.optimizer_s + time.local_s;
    if (inputs.local_world_size > 1) {
      EXPECT_NEAR(program.last_compute_s() / predicted_s, 1, 0.1);
    } else {  // which the plan has sum whole shares, where the node adds what the network brings
      EXPECT_LT(program.last_compute_s(), 1.001 * predicted_s);
      EXPECT_GT(program.last_compute_s(), 0.999 * (time.compute_s() + time.optimizer_s));
    }
  });
}

TEST(StepProgram, WaitsForEveryTransferAfterItsIssue) {
  for_each_sharding([](StepWalks& walks, const StepInputs& inputs) {
    RatedCosts op_costs(some_rates());
    const ZeroLayout layout = zero_layout(walks.layout(), inputs.num_nodes, inputs.local_world_size);
    const StepProgram program = step_program(layout, inputs.zero, step_costs(walks, inputs, op_costs),
                                             walks.config().tie_word_embeddings, 4);
    int64_t issued = 0;
    for (const Action& action : program.actions) {
      if (action.kind == ActionKind::kIssue) {
        EXPECT_EQ(action.transfer, issued++);
      }
      if (action.kind == ActionKind::kWait) {
        EXPECT_LT(action.transfer, issued);
      }
    }
    EXPECT_EQ(issued, std::ssize(program.transfers));
  });
}

TEST(StepCosts, ScaleToMeasuredTimes) {
  StepWalks walks(config_of(false), DType::kBF16);
  RatedCosts op_costs(some_rates());
  StepCosts costs = step_costs(walks, inputs_of(2, 1, 2, GatherSchedule::kPerStep, 2), op_costs);
  const double passes_s = costs.passes_s();
  costs.scale_passes(3);
  EXPECT_NEAR(costs.passes_s(), 3 * passes_s, 1e-9);
  costs.set_update(0.5);
  double update_s = 0;
  for (const double seconds : costs.update_s) update_s += seconds;
  EXPECT_NEAR(update_s, 0.5, 1e-9);
}

}  // namespace
}  // namespace tessera
