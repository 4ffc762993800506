// The memory table: what it refuses, and that it matches reality.
#include "plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/text.h"
#include "expect_error.h"
#include "optim/elementwise.h"
#include "platform/memory_info.h"
#include "support/train/medium_config.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MemoryPlanTest : public testing::Test {
 protected:
  MemoryPlanTest()
      : ops_(make_cpu_ops(pool_)),
        model_(tiny_config(), DType::kBF16, *ops_),
        larger_(medium_config(), DType::kBF16, *ops_) {
    request_.limits.max_tokens = 4096;
    request_.limits.max_sequence_length = 64;
    request_.baseline_bytes = 1000;
    request_.export_bytes = 500;
    request_.zero.state_tensors = AdamW::kStateTensors;
  }
  int64_t bytes_of(const MemoryPlan& plan, MemoryKind kind, const std::string& start = "") {
    int64_t sum = 0;
    for (const MemoryItem& item : plan.items) {
      if (item.kind == kind && item.name.starts_with(start)) sum += item.size_bytes;
    }
    EXPECT_GT(sum, 0) << "no item '" << start << "' of " << memory_kind_name(kind);
    return sum;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_;
  LlamaModel model_;
  LlamaModel larger_;  // its shards outweigh the network buffers
  MemoryRequest request_;
};

// The sizes that make up the memory of one process.
TEST_F(MemoryPlanTest, OneProcessCountsEveryKindByItsFormula) {
  const int64_t count = model_.layout().num_elements();
  const MemoryPlan plan = plan_memory(model_, request_);
  const ActivationBytes activations = model_.activation_bytes(request_.limits);
  EXPECT_EQ(bytes_of(plan, MemoryKind::kWeights), 2 * count + activations.packed_bytes);
  EXPECT_EQ(bytes_of(plan, MemoryKind::kGradients), 4 * count);
  EXPECT_EQ(bytes_of(plan, MemoryKind::kOptimizer),
            optimizer_state_bytes(AdamW::kStateTensors, count, DType::kBF16));
  EXPECT_EQ(bytes_of(plan, MemoryKind::kOptimizer, "master"), 2 * count);
  EXPECT_EQ(bytes_of(plan, MemoryKind::kActivations),
            activations.saved_bytes + activations.working_bytes + activations.workspace_bytes);
  EXPECT_EQ(bytes_of(plan, MemoryKind::kActivations, "kept"), activations.saved_bytes);
  EXPECT_EQ(bytes_of(plan, MemoryKind::kBuffers), 500 + 4 * (3 * 4096 + 2 * 64));
  EXPECT_EQ(bytes_of(plan, MemoryKind::kProgram, "resident"), 1000);
  int64_t sum = 0;
  for (const MemoryItem& item : plan.items) sum += item.size_bytes;
  EXPECT_EQ(plan.node_bytes(), sum);
  EXPECT_EQ(plan.rank_bytes(), sum);
  EXPECT_EQ(plan.job_bytes(), sum);
  EXPECT_EQ(plan.shared_bytes(), 0);
}

TEST_F(MemoryPlanTest, PackedWeightsAreKeptOncePerNodeThatHasAllWeights) {
  request_.num_nodes = 2;
  request_.local_world_size = 2;
  request_.zero.stage = 3;
  request_.limits.pack_weights = true;
  const auto packed_bytes = [&] {
    int64_t sum = 0;
    for (const MemoryItem& item : plan_memory(model_, request_).items) {
      if (item.name != "packed for the products") continue;
      EXPECT_EQ(item.scope, MemoryScope::kNode);
      sum += item.size_bytes;
    }
    return sum;
  };
  EXPECT_TRUE(can_keep_packed_weights(model_, request_));
  check_packed_weights(model_, request_);
  EXPECT_EQ(packed_bytes(), model_.activation_bytes(request_.limits).packed_bytes);
  request_.zero.schedule = GatherSchedule::kPerLayer;
  EXPECT_FALSE(can_keep_packed_weights(model_, request_));
  EXPECT_EQ(packed_bytes(), 0);
  try {
    check_packed_weights(model_, request_);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
  }
  request_.limits.pack_weights = false;
  check_packed_weights(model_, request_);
}

TEST_F(MemoryPlanTest, ANodeHasWhatItsRanksShareOnce) {
  request_.num_nodes = 2;
  request_.local_world_size = 3;
  const MemoryPlan plan = plan_memory(model_, request_);
  int64_t of_rank = 0, of_first_rank = 0, shared = 0;
  for (const MemoryItem& item : plan.items) {
    (item.scope == MemoryScope::kNode   ? shared
     : item.scope == MemoryScope::kRank ? of_rank
                                        : of_first_rank) += item.size_bytes;
  }
  EXPECT_GE(shared, 2 * model_.layout().num_elements());
  EXPECT_EQ(plan.private_bytes(), of_rank);
  EXPECT_EQ(plan.shared_bytes(), shared);
  EXPECT_EQ(plan.node_bytes(), 3 * of_rank + of_first_rank + shared);
  EXPECT_EQ(plan.rank_bytes(), plan.node_bytes() / 3);
  EXPECT_EQ(plan.job_bytes(), 2 * plan.node_bytes());
  EXPECT_EQ(needed_bytes(model_, request_), plan.node_bytes() - 3 * 1000);
}

TEST_F(MemoryPlanTest, MoreOfEverythingTakesMore) {
  const int64_t needed = needed_bytes(model_, request_);
  MemoryRequest more = request_;
  more.limits.max_tokens *= 2;
  EXPECT_GT(needed_bytes(model_, more), needed);
  more = request_;
  more.limits.gradient_checkpointing = true;
  EXPECT_LT(needed_bytes(model_, more), needed);
  more = request_;
  more.local_world_size = 2;
  EXPECT_GT(needed_bytes(model_, more), needed);
  MemoryRequest nodes = request_;
  nodes.num_nodes = 2;
  int64_t last = needed_bytes(larger_, nodes);
  for (nodes.num_nodes = 4; nodes.num_nodes <= 16; nodes.num_nodes *= 2) {
    EXPECT_LT(needed_bytes(larger_, nodes), last) << nodes.num_nodes << " nodes";
    last = needed_bytes(larger_, nodes);
  }
}

TEST_F(MemoryPlanTest, ChecksTheBaselineNotTwice) {
  const int64_t needed = plan_memory(model_, request_).node_bytes() - request_.baseline_bytes;
  EXPECT_EQ(memory_refusal(model_, request_, needed, {}), "");
  EXPECT_THAT(memory_refusal(model_, request_, needed - 1, {}),
              AllOf(HasSubstr("does not fit in memory"),
                    HasSubstr("; no setting and no number of nodes makes it fit")));
}

TEST_F(MemoryPlanTest, NamesTheFirstChangeThatFits) {
  MemoryRequest smaller = request_, tiny = request_;
  smaller.limits.max_tokens = 4000;
  tiny.limits.max_tokens = 64;
  EXPECT_THAT(
      memory_refusal(model_, request_, needed_bytes(model_, tiny),
                     {{"gradient_checkpointing true", smaller}, {"per_device_train_batch_size 1", tiny}}),
      AllOf(HasSubstr("with per_device_train_batch_size 1 it would take"),
            HasSubstr("activations: kept for backward ")));
}

TEST_F(MemoryPlanTest, ARefusalNamesTheLargestItemsOnly) {
  const std::string text = memory_refusal(model_, request_, 1, {});
  const size_t begin = text.find("the largest items are ");
  ASSERT_NE(begin, std::string::npos) << text;
  const std::string items = text.substr(begin, text.find("; ", begin) - begin);
  std::vector<int64_t> sizes;
  for (const MemoryItem& item : plan_memory(model_, request_).items) sizes.push_back(item.size_bytes);
  std::ranges::sort(sizes, std::greater());
  EXPECT_EQ(std::ranges::count(items, ':'), 3) << items;
  for (size_t i = 0; i < 3; ++i) EXPECT_THAT(items, HasSubstr(format_bytes(sizes[i])));
  EXPECT_LT(text.size(), 330u) << text;
}

TEST_F(MemoryPlanTest, SaysHowManyNodesWouldDo) {
  request_.export_bytes = 64 << 20;  // more than any number of ranks takes
  MemoryRequest five = request_;
  five.num_nodes = 5;
  const int64_t free_bytes = needed_bytes(larger_, five);
  EXPECT_EQ(nodes_that_fit(larger_, request_, free_bytes, 8), 5);
  EXPECT_EQ(nodes_that_fit(larger_, request_, free_bytes, 4), std::nullopt);
  EXPECT_EQ(nodes_that_fit(larger_, request_, needed_bytes(larger_, request_), 8), 1);
  EXPECT_THAT(memory_refusal(larger_, request_, free_bytes, {}),
              HasSubstr("; 5 nodes of one rank would do with these settings"));
  request_.num_nodes = 2;
  request_.local_world_size = 2;
  five.local_world_size = 2;
  EXPECT_THAT(memory_refusal(larger_, request_, needed_bytes(larger_, five), {}),
              AllOf(HasSubstr("more on every node"), HasSubstr("; 5 nodes of 2 ranks would do")));
}

// At stage 0 every node keeps everything.
TEST_F(MemoryPlanTest, SaysHowManyNodesWouldDoWithOtherSettings) {
  request_.zero.stage = 0;
  MemoryRequest sharded = request_;
  sharded.zero.stage = 3;
  sharded.zero.schedule = GatherSchedule::kPerLayer;
  MemoryRequest seven = sharded;
  seven.num_nodes = 7;
  seven.export_bytes = 64 << 20;  // more than any number of ranks takes
  const int64_t free_bytes = needed_bytes(larger_, seven);
  EXPECT_EQ(nodes_that_fit(larger_, request_, free_bytes, 4096), std::nullopt);
  const std::optional<int> fewest = nodes_that_fit(larger_, sharded, free_bytes, 4096);
  ASSERT_TRUE(fewest.has_value());
  EXPECT_LE(*fewest, 7);
  EXPECT_THAT(
      memory_refusal(larger_, request_, free_bytes, {}),
      testing::EndsWith(fmt::format("; no setting makes it fit on one node; {} nodes of one rank would do "
                                    "with zero_stage 3 and gather_schedule per_layer",
                                    *fewest)));

  // Activations are not sharded: the rows must change as well.
  MemoryRequest wide = request_, narrow = request_;
  wide.limits.max_tokens = 64 * request_.limits.max_tokens;
  const std::vector<MemoryAlternative> alternatives = {{"per_device_train_batch_size 1", narrow}};
  EXPECT_THAT(memory_refusal(larger_, wide, free_bytes, alternatives),
              HasSubstr("nodes of one rank would do with per_device_train_batch_size 1 and zero_stage 3 and "
                        "gather_schedule per_layer"));
  EXPECT_THAT(memory_refusal(larger_, wide, 1000, alternatives),
              HasSubstr("; no setting and no number of nodes makes it fit: use a smaller model"));
  // If they are on disk, one node is enough.
  const int64_t enough = needed_bytes(larger_, narrow);
  EXPECT_THAT(
      memory_refusal(larger_, wide, enough, alternatives),
      testing::EndsWith("; with per_device_train_batch_size 1 it would take " + format_bytes(enough)));
}

TEST_F(MemoryPlanTest, NodesUpdateAfterThePass) {
  request_.zero.optimizer_in_backward = true;
  request_.zero.stage = 3;
  request_.zero.schedule = GatherSchedule::kPerLayer;
  const std::string text = memory_refusal(larger_, request_, needed_bytes(larger_, request_) - 1, {});
  EXPECT_THAT(text, HasSubstr("nodes of one rank would do with optimizer_in_backward false"));
}

TEST_F(MemoryPlanTest, AlternativesGoFromTheLeastIntrusiveToTheMost) {
  request_.num_nodes = 4;
  request_.limits.pack_weights = true;
  request_.zero.stage = 1;
  const MemoryChoices choices = {2, 4, [](int64_t batch_size, int64_t max_row_length, bool checkpointing) {
                                   ActivationLimits limits;
                                   limits.max_tokens = batch_size * std::min<int64_t>(max_row_length, 128);
                                   limits.max_sequence_length = std::min<int64_t>(max_row_length, 128);
                                   limits.gradient_checkpointing = checkpointing;
                                   return limits;
                                 }};
  request_.limits.max_sequence_length = 128;
  request_.limits.max_tokens = 2 * 4 * 128;
  const std::vector<MemoryAlternative> list = memory_alternatives(request_, choices);
  std::vector<std::string> changes;
  for (const MemoryAlternative& alternative : list) changes.push_back(alternative.change);
  const std::string kept =
      "pack_weights never and merge_micro_batches never and zero_stage 3 and gather_schedule per_layer";
  const std::string row = "per_device_train_batch_size 1", checkpointing = "gradient_checkpointing true";
  EXPECT_THAT(changes,
              testing::ElementsAre("pack_weights never", "pack_weights never and merge_micro_batches never",
                                   "pack_weights never and merge_micro_batches never and zero_stage 3", kept,
                                   kept + " and " + checkpointing,
                                   kept + " and " + checkpointing + " and offload_optimizer_device nvme",
                                   kept + " and " + row, kept + " and " + checkpointing + " and " + row,
                                   kept + " and " + checkpointing + " and " + row + " and max_length 64"));
  EXPECT_FALSE(list[0].request.limits.pack_weights);
  EXPECT_EQ(list[1].request.zero.passes_per_step, 4);
  EXPECT_EQ(list[1].request.limits.max_tokens, 2 * 128);
  EXPECT_EQ(list[2].request.zero.stage, 3);
  EXPECT_EQ(list[2].request.zero.schedule, GatherSchedule::kPerStep);
  EXPECT_EQ(list[3].request.zero.schedule, GatherSchedule::kPerLayer);
  EXPECT_EQ(list.back().request.limits.max_tokens, 64);
  for (const MemoryAlternative& alternative : list) {
    EXPECT_LE(needed_bytes(model_, alternative.request), needed_bytes(model_, request_))
        << alternative.change;
  }
}

TEST_F(MemoryPlanTest, SmallerMicroBatchesOfAGlobalBatchMakeMorePasses) {
  const auto limits_for = [](int64_t batch_size, int64_t max_row_length, bool checkpointing) {
    ActivationLimits limits;
    limits.max_tokens = batch_size * std::min<int64_t>(max_row_length, 128);
    limits.max_sequence_length = std::min<int64_t>(max_row_length, 128);
    limits.gradient_checkpointing = checkpointing;
    return limits;
  };
  request_.zero.passes_per_step = 1;
  const auto passes_of_last = [&](bool keeps_global_batch) {
    const MemoryChoices choices = {5, 1, limits_for, keeps_global_batch};
    return memory_alternatives(request_, choices).back().request.zero.passes_per_step;
  };
  EXPECT_EQ(passes_of_last(false), 1);
  EXPECT_EQ(passes_of_last(true), 5);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_F(MemoryPlanTest, TableOfOneProcessHasOneColumnTotalAndFreeMemory) {
  const std::string table = memory_table(plan_memory(model_, request_), int64_t{3} << 30);
  EXPECT_THAT(table, HasSubstr("gradients    accumulators (F32)"));
  EXPECT_THAT(table, HasSubstr("total  "));
  EXPECT_THAT(table, testing::Not(HasSubstr("a rank")));
  EXPECT_TRUE(table.ends_with("  3.00 GiB\n")) << table;
}

TEST_F(MemoryPlanTest, TableOfManyRanksFits80Columns) {
  request_.num_nodes = 128;
  request_.local_world_size = 16;
  request_.zero.schedule = GatherSchedule::kPerLayer;
  request_.limits.pack_weights = true;
  const std::vector<std::string> lines =
      lines_of(memory_table(plan_memory(model_, request_), int64_t{1} << 40));
  for (const std::string& line : lines) {
    EXPECT_LE(line.size() + 2, 80u) << line;  // the reports indent it by two
    EXPECT_FALSE(line.ends_with(" ")) << line;
  }
  EXPECT_THAT(lines.front(), testing::MatchesRegex(" +a rank +a node +128 nodes"));
  EXPECT_THAT(lines.at(lines.size() - 2), testing::StartsWith("total"));
  EXPECT_THAT(lines.back(), testing::MatchesRegex("free +on this node +1.00 TiB"));
}

TEST_F(MemoryPlanTest, MeasuredMemoryStandsBesideThePlan) {
  request_.local_world_size = 2;
  const MemoryPlan plan = plan_memory(model_, request_);
  const std::vector<std::string> lines = lines_of(measured_table(plan, {{3 << 20, 5 << 20}, 0}));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[0], testing::MatchesRegex(" +predicted +measured"));
  EXPECT_THAT(lines[1], testing::EndsWith("3.00 MiB"));
  EXPECT_THAT(lines[2], testing::EndsWith("5.00 MiB"));
  EXPECT_THAT(lines[3], testing::MatchesRegex("a node +.*iB +8.00 MiB"));
  EXPECT_THAT(lines[3], HasSubstr(format_bytes(plan.step_memory().node_bytes())));
}

TEST_F(MemoryPlanTest, JsonHasThePlanByItemAndWhatWasMeasured) {
  request_.local_world_size = 2;
  request_.export_bytes = 5;
  request_.first_rank_exports = true;
  const MemoryPlan plan = plan_memory(model_, request_);
  const nlohmann::json out = nlohmann::json::parse(memory_json(plan, {{100, 20}, 7}));
  EXPECT_EQ(out["measured"]["node_bytes"], 120);
  EXPECT_EQ(out["measured"]["loading_peak_bytes"], 7);
  std::map<std::string, int64_t> sums;
  for (const nlohmann::json& item : out["predicted"]["items"]) {
    sums[item["use"]] += item["bytes"].get<int64_t>() * (item["scope"] == "rank" ? 2 : 1);
    EXPECT_EQ(item["scope"] == "first rank", item["name"] == "writing weights");
  }
  const nlohmann::json& predicted = out["predicted"];
  EXPECT_EQ(sums["step"], predicted["node_bytes"]);
  EXPECT_EQ(sums["saving"], predicted["saving_bytes"]);
  EXPECT_EQ(sums["saving"], 5 + (4 << 20));
  EXPECT_EQ(predicted["node_bytes"],
            predicted["private_bytes"].get<int64_t>() + predicted["shared_bytes"].get<int64_t>());
  EXPECT_EQ(sums["step"] + sums["saving"], plan.node_bytes());
}

TEST(EightBitState, NeedsTensorsThatBeginWithABlock) {
  TinyRun tiny;  // the 132 weights of gate_proj come before up_proj's
  tiny.spec.optimizer.form = OptimizerForm::kAdamW8Bit;
  expect_error(ExitCode::kBadConfig,
               {"optim adamw_8bit: expected tensors of multiples of 32 elements before",
                "'model.layers.0.mlp.up_proj.weight'", "found 4 more", "use adamw_bf16"},
               [&] { tiny.train(); });
}

TEST(MemoryLimit, ARunThatDoesNotFitIsRefusedBeforeItAllocates) {
  TinyRun tiny(medium_config());
  testing::GTEST_FLAG(death_test_style) = "fast";
  const auto run_with_limit = [&] {
    std::ifstream statm("/proc/self/statm");
    int64_t mapped_pages = 0;
    statm >> mapped_pages;
    ThreadPool pool(1);
    const rlim_t limit = static_cast<rlim_t>(mapped_pages * 4096 + (int64_t{160} << 20));
    const rlimit address_space = {limit, limit};
    setrlimit(RLIMIT_AS, &address_space);
    RecordingObserver observer;
    const int64_t before = resident_bytes();
    try {
      Trainer trainer(tiny.spec, pool, observer);
    } catch (const Error& error) {
      const bool grew = resident_bytes() - before > (int64_t{60} << 20);
      std::fprintf(stderr, "%s%s", error.what(), grew ? " after allocating" : "");
      std::_Exit(observer.plan.memory.items.empty() ? 1 : static_cast<int>(error.code()));
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(run_with_limit(), testing::ExitedWithCode(78),
              "does not fit in memory: it takes .* no setting and no number of nodes makes it fit");
}

}  // namespace
}  // namespace tessera
