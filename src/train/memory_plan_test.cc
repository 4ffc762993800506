// The memory table: what it refuses, and that it is true.
#include "train/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>

#include "checkpoint/model_folder.h"
#include "expect_error.h"
#include "platform/memory_info.h"
#include "train/train_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class MemoryPlanTest : public testing::Test {
 protected:
  MemoryPlanTest() : ops_(make_cpu_ops(pool_)), model_(tiny_config(), DType::kBF16, *ops_) {
    request_.limits.max_tokens = 4096;
    request_.limits.max_sequence_length = 64;
    request_.baseline_bytes = 1000;
    request_.export_bytes = 500;
  }
  int64_t bytes_of(const MemoryPlan& plan, const std::string& start) {
    for (const MemoryItem& item : plan.items) {
      if (item.name.starts_with(start)) return item.size_bytes;
    }
    ADD_FAILURE() << "no item '" << start << "'";
    return 0;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_;
  Model model_;
  MemoryRequest request_;
};

TEST_F(MemoryPlanTest, CountsEveryKindByItsFormula) {
  const int64_t count = model_.layout().num_elements();
  const MemoryPlan plan = plan_memory(model_, request_);
  EXPECT_EQ(bytes_of(plan, "weights"), 2 * count);
  EXPECT_EQ(bytes_of(plan, "gradients"), 4 * count);
  EXPECT_GE(bytes_of(plan, "optimizer moments"), 8 * count);
  EXPECT_EQ(bytes_of(plan, "optimizer master remainder"), 2 * count);
  EXPECT_EQ(bytes_of(plan, "program"), 1000);
  const ActivationBytes activations = model_.activation_bytes(request_.limits);
  EXPECT_EQ(bytes_of(plan, "activations kept"), activations.saved_bytes);
  int64_t sum = 0;
  for (const MemoryItem& item : plan.items) sum += item.size_bytes;
  EXPECT_EQ(plan.total_bytes(), sum);
}

TEST_F(MemoryPlanTest, ChecksTheBaselineNotTwice) {
  const int64_t needed = plan_memory(model_, request_).total_bytes() - request_.baseline_bytes;
  check_memory_fits(model_, request_, needed, {});
  expect_error(ExitCode::kBadConfig, {"does not fit in memory", "no setting makes it fit"},
               [&] { check_memory_fits(model_, request_, needed - 1, {}); });
}

TEST_F(MemoryPlanTest, NamesTheFirstChangeThatFits) {
  ActivationLimits smaller = request_.limits, tiny = request_.limits;
  smaller.max_tokens = 4000;
  tiny.max_tokens = 64;
  MemoryRequest fitting = request_;
  fitting.limits = tiny;
  const int64_t free_bytes = plan_memory(model_, fitting).total_bytes();
  expect_error(
      ExitCode::kBadConfig,
      {"with per_device_train_batch_size 1 it would take", "weights (BF16)", "activations kept for backward"},
      [&] {
        check_memory_fits(
            model_, request_, free_bytes,
            {{"gradient_checkpointing true", smaller}, {"per_device_train_batch_size 1", tiny}});
      });
}

TEST_F(MemoryPlanTest, TableEndsWithTotalAndFreeMemory) {
  const std::string table = memory_table(plan_memory(model_, request_), int64_t{3} << 30);
  EXPECT_THAT(table, HasSubstr("gradients (F32)"));
  EXPECT_THAT(table, HasSubstr("total  "));
  EXPECT_TRUE(table.ends_with("  3.00 GiB\n")) << table;
}

// 34 million parameters in 8 layers.
ModelConfig medium_config() {
  ModelConfig config = tiny_config();
  config.vocab_size = 8000;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = 256;
  return config;
}

// Lets VmHWM start again from the present size (Documentation/filesystems/proc.rst, clear_refs).
bool reset_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

class PeakMemory : public testing::TestWithParam<bool> {};

TEST_P(PeakMemory, StaysWithinATenthOfThePlan) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  TinyRun tiny(medium_config());
  const int64_t vocab_size = medium_config().vocab_size;
  write_token_rows(tiny.args.dataset[0], random_rows(std::vector<int64_t>(4, 100), vocab_size, 5));
  tiny.args.dtype = GetParam() ? "bfloat16" : "float32";
  tiny.args.gradient_checkpointing = GetParam();
  tiny.args.gradient_accumulation_steps = 1;
  tiny.args.max_steps = 2;
  tiny.args.save_strategy = "steps";
  tiny.args.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.args.eval_strategy = "epoch";
  if (!reset_peak()) GTEST_SKIP() << "the kernel does not let the peak be reset";
  const RecordingObserver run = tiny.train();
  const auto planned = static_cast<double>(run.plan.memory.total_bytes());
  const auto peak = static_cast<double>(run.summary.peak_resident_bytes);
  RecordProperty("planned_bytes", std::to_string(run.plan.memory.total_bytes()));
  RecordProperty("peak_bytes", std::to_string(run.summary.peak_resident_bytes));
  EXPECT_GT(planned, 300e6);
  EXPECT_NEAR(peak / planned, 1, 0.1)
      << "planned\n"
      << memory_table(run.plan.memory, run.plan.free_bytes) << "peak " << peak;
}

INSTANTIATE_TEST_SUITE_P(Modes, PeakMemory, testing::Bool(),
                         [](const auto& test) { return test.param ? "Bfloat16Checkpointing" : "Float32"; });

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
      Trainer trainer(tiny.args, pool, observer);
    } catch (const Error& error) {
      const bool grew = resident_bytes() - before > (int64_t{60} << 20);
      std::fprintf(stderr, "%s%s", error.what(), grew ? " after allocating" : "");
      std::_Exit(observer.plan.memory.items.empty() ? 1 : static_cast<int>(error.code()));
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(run_with_limit(), testing::ExitedWithCode(78),
              "does not fit in memory: it takes .* no setting makes it fit");
}

}  // namespace
}  // namespace tessera
