// Settings that the best model and early stopping need, and the names of other trainers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "settings/run_settings.h"
#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using EvaluationArgumentsTest = ArgumentsTest;

TEST_F(EvaluationArgumentsTest, NamesOfOtherTrainersAreOtherSpellings) {
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, const char*>>{{"base_model", "m"},
                                                        {"cutoff_len", "77"},
                                                        {"neat_packing", "true"},
                                                        {"num_epochs", "5"},
                                                        {"micro_batch_size", "3"},
                                                        {"eval_batch_size", "6"},
                                                        {"optimizer", "adamw_torch"},
                                                        {"lr_scheduler", "cosine"},
                                                        {"bf16", "auto"},
                                                        {"disable_gradient_checkpointing", "false"},
                                                        {"dataset_prepared_path", "prepared"},
                                                        {"stage", "pt"},
                                                        {"finetuning_type", "full"},
                                                        {"flash_attn", "auto"},
                                                        {"group_by_length", "true"},
                                                        {"ddp_timeout", "180000000"},
                                                        {"dataset_text_field", "body"},
                                                        {"neftune_noise_alpha", "5"}}) {
    give(name, value);
  }
  resolve();
  EXPECT_EQ(spec_.model.folder, "m");
  EXPECT_EQ(spec_.data.max_length, 77);
  EXPECT_TRUE(spec_.data.packing);
  EXPECT_EQ(spec_.batch.num_epochs, 5);
  EXPECT_EQ(spec_.batch.rows_per_device, 3);
  EXPECT_EQ(spec_.evaluation.rows_per_device, 6);
  EXPECT_EQ(schedule_type(spec_.schedule.form), ScheduleType::kCosine);
  EXPECT_EQ(spec_.precision.dtype, DType::kBF16);
  EXPECT_TRUE(spec_.placement.gradient_checkpointing);
  EXPECT_EQ(spec_.data.cache_dir, "prepared");
  EXPECT_EQ(spec_.data.text_column, "body");
  EXPECT_EQ(spec_.objective.neftune_alpha, 5);
  EXPECT_THAT(refusal("neat_packing", "maybe"), HasSubstr("expected true or false"));
}

TEST_F(EvaluationArgumentsTest, TokensSeenAreAChoiceOrABoolean) {
  for (const auto& [value, choice] :
       std::vector<std::pair<const char*, TokensSeen>>{{"true", TokensSeen::kAll},
                                                       {"False", TokensSeen::kNo},
                                                       {"non_padding", TokensSeen::kNonPadding}}) {
    give("include_num_input_tokens_seen", value);
    EXPECT_EQ(spec_.reporting.tokens_seen, choice) << value;
  }
  EXPECT_THAT(refusal("include_num_input_tokens_seen", "some"), HasSubstr("expected one of no, all"));
}

TEST_F(EvaluationArgumentsTest, GroupingByLengthIsAnOrderDrawnFromTheSeed) {
  give("group_by_length", "true");
  give("data_seed", "7");
  resolve();
  EXPECT_TRUE(spec_.data.shuffle);
  EXPECT_EQ(spec_.data.sampling_strategy, SamplingStrategy::kGroupByLength);
  EXPECT_EQ(spec_.batch_options(1).seed, 42u);
  give("shuffle", "false");
  EXPECT_THAT(contradiction(), HasSubstr("contradicts train_sampling_strategy group_by_length"));
}

TEST_F(EvaluationArgumentsTest, PackingStrategiesAreTrls) {
  EXPECT_EQ(spec_.data.packing_mode(), Packing::kNone);
  give("packing", "true");
  EXPECT_EQ(spec_.data.packing_mode(), Packing::kByRows);
  for (const auto& [strategy, packing] :
       {std::pair("bfd", Packing::kBestFit), std::pair("bfd_split", Packing::kBestFitSplit),
        std::pair("wrapped", Packing::kWrapped), std::pair("in_order", Packing::kIsolated)}) {
    give("packing_strategy", strategy);
    EXPECT_EQ(spec_.data.packing_mode(), packing) << strategy;
  }
  EXPECT_THAT(refusal("packing_strategy", "ffd"), HasSubstr("expected one of auto, bfd, bfd_split"));
  give("eval_packing", "false");
  EXPECT_EQ(spec_.data.eval_packing_mode(), Packing::kNone);
  give("packing_cross_document_attention", "true");
  EXPECT_EQ(spec_.data.packing_mode(), Packing::kJoined);
  give("packing_strategy", "bfd");
  EXPECT_THAT(contradiction(), HasSubstr("contradicts packing_strategy bfd"));
}

TEST_F(EvaluationArgumentsTest, MeansOfRanksNeedRowsOfRanks) {
  give("average_tokens_across_devices", "false");
  resolve();
  give("global_batch_size", "8");
  resolve();  // on one rank all means are the same
  EXPECT_THAT(contradiction(2),
              HasSubstr("average_tokens_across_devices false cannot be combined with global_batch_size"));
}

// Hugging Face's rules, as in TrainingArguments.__post_init__ and Trainer.__init__.
TEST_F(EvaluationArgumentsTest, TheBestModelNeedsCheckpointsAtEvaluations) {
  give("load_best_model_at_end", "true");
  EXPECT_EQ(contradiction(), "load_best_model_at_end needs eval_strategy steps or epoch");
  give("eval_strategy", "steps");
  spec_.data.eval_dataset = {"e.jsonl"};
  give("eval_steps", "200");
  EXPECT_EQ(
      contradiction(),
      "load_best_model_at_end needs save_steps to be a multiple of eval_steps, found save_steps 500 and "
      "eval_steps 200");
  give("save_steps", "400");
  resolve();
  EXPECT_EQ(spec_.evaluation.metric, "eval_loss");
  EXPECT_EQ(spec_.evaluation.greater_is_better, false);
  give("save_steps", "0.4");
  EXPECT_THAT(contradiction(), HasSubstr("both to be steps or both fractions"));
  give("eval_steps", "0.1");
  resolve();
  give("save_strategy", "epoch");
  EXPECT_THAT(contradiction(), HasSubstr("found save_strategy epoch and eval_strategy steps"));
  give("save_strategy", "best");
  resolve();
}

TEST_F(EvaluationArgumentsTest, TheDirectionOfAMetricFollowsFromItsName) {
  give("eval_strategy", "epoch");
  spec_.data.eval_dataset = {"e.jsonl"};
  spec_.evaluation.choices = {"c.jsonl"};
  for (const auto& [name, greater] :
       std::vector<std::pair<const char*, bool>>{{"loss", false},
                                                 {"eval_perplexity", false},
                                                 {"choices_accuracy", true},
                                                 {"eval_choices_accuracy_norm", true}}) {
    spec_.evaluation.greater_is_better.reset();
    give("metric_for_best_model", name);
    resolve();
    EXPECT_EQ(spec_.evaluation.greater_is_better, greater) << name;
    EXPECT_TRUE(spec_.evaluation.metric.starts_with("eval_"));
  }
  give("greater_is_better", "false");
  resolve();
  EXPECT_EQ(spec_.evaluation.greater_is_better, false);
  spec_.evaluation.choices.clear();
  EXPECT_EQ(contradiction(), "metric_for_best_model eval_choices_accuracy_norm needs eval_choices");
}

TEST_F(EvaluationArgumentsTest, EarlyStoppingAndSavingTheBestNeedAMetric) {
  give("eval_strategy", "epoch");
  spec_.data.eval_dataset = {"e.jsonl"};
  give("save_strategy", "best");
  EXPECT_EQ(contradiction(), "save_strategy best needs a metric_for_best_model, such as loss");
  give("early_stopping_patience", "3");
  EXPECT_EQ(contradiction(), "early_stopping_patience needs a metric_for_best_model, such as loss");
  give("metric_for_best_model", "loss");
  resolve();
  EXPECT_THAT(refusal("early_stopping_patience", "0"), HasSubstr("at least 1"));
}

}  // namespace
}  // namespace tessera
