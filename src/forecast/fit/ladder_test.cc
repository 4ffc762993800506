// Forms of a run and the choice among them, on machines whose rates are given.
#include "forecast/fit/ladder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/model_config.h"
#include "settings/state/lora_settings.h"
#include "settings/state/quantization_settings.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

// The arguments that a command line gives, resolved for so many ranks.
RunSpec parsed(const std::vector<std::string>& words, int world_size = 1) {
  RunSpec args;
  FlagTable table;
  declare_training_flags(&table, &args);
  for (const std::string& word : words) {
    const size_t space = word.find(' ');
    const std::string name = word.substr(2, space - 2);
    table.set(*table.find(name), {space == std::string::npos ? "true" : word.substr(space + 1)}, "test");
  }
  resolve_run_spec(table, world_size, &args);
  return args;
}

struct Limits {
  int64_t memory_bytes = 64 * kGiB;
  int64_t disk_bytes = kUnlimited;
  int local_world_size = 1;
};

LadderRequest request_of(std::vector<std::string> words, const Limits& limits, const char* preset = "160m") {
  words.insert(words.end(), {"--fit", "--max_length 512", "--per_device_train_batch_size 2"});
  ClusterShape cluster;
  cluster.local_world_size = limits.local_world_size;
  cluster.node_memory_bytes = limits.memory_bytes;
  cluster.rates = rates_of_instance({.num_cores = 2, .clock_ghz = 3});
  ModelConfig config = preset_config(preset);
  if (config.vocab_size == 0) config.vocab_size = 32000;
  JobSize job;
  job.max_row_tokens = job.mean_row_tokens = 512;
  const RunSpec args = parsed(words, limits.local_world_size);
  config.lora = lora_config_of(args);
  config.base_quantization = base_quantization_of(args);
  return ladder_request(args, config, cluster, 1, job, limits.disk_bytes);
}

std::vector<std::string> words_of(const Ladder& ladder) {
  if (!ladder.best) return {};
  const auto words = form_words(ladder.rungs[*ladder.best].form);
  return {words.begin(), words.end()};
}

TEST(Form, AnAmpleMachineTakesTheExactFormInMemory) {
  const Ladder ladder = plan_ladder(request_of({}, {}));
  EXPECT_THAT(words_of(ladder), ElementsAre("exact", "memory", "memory", "after", "kept", "bf16"));
  EXPECT_TRUE(form_flags(ladder.args, ladder.rungs[*ladder.best].form).empty());
  EXPECT_EQ(ladder.rungs[*ladder.best].disk_bytes, 0);
}

// Every form of the table comes back from its flags, with the memory that the ladder says.
TEST(Form, FlagsParseBackIntoTheSamePlan) {
  for (const char* type : {"--finetuning_type full", "--finetuning_type lora"}) {
    const LadderRequest request = request_of({type}, {.memory_bytes = 4 * kGiB});
    const Ladder ladder = plan_ladder(request);
    EXPECT_GT(ladder.rungs.size(), 60u);
    for (const Rung& rung : ladder.rungs) {
      std::vector<std::string> words = form_flags(ladder.args, rung.form);
      SCOPED_TRACE(fmt::format("{}", fmt::join(words, " ")));
      words.insert(words.end(), {type, "--max_length 512", "--per_device_train_batch_size 2"});
      const RunSpec args = parsed(words);
      RunSpec chosen = with_form(request.args, rung.form, 1);
      EXPECT_EQ(training_arguments_json(args), training_arguments_json(chosen));
      ClusterShape cluster;
      cluster.node_memory_bytes = 4 * kGiB;
      ModelConfig config = request.config;
      config.base_quantization = base_quantization_of(args);
      const RunForecast forecast = forecast_run(args, config, cluster, 1);
      EXPECT_EQ(forecast.refusal.empty(), rung.fits_memory);
      EXPECT_EQ(forecast.disk.offload_bytes, rung.disk_bytes);
    }
  }
}

TEST(Form, EveryStepDownTakesLessOfWhatItIsFor) {
  const Ladder ladder = plan_ladder(request_of({"--pack_weights never"}, {}));
  std::map<Form, const Rung*> by_form;
  for (const Rung& rung : ladder.rungs) by_form[rung.form] = &rung;
  const auto with = [&](Form form, FormAxis axis, int choice) -> const Rung* {
    form.choices[static_cast<size_t>(axis)] = choice;
    const auto found = by_form.find(form);
    return found == by_form.end() ? nullptr : found->second;
  };
  int num_compared = 0;
  for (const auto& [form, rung] : by_form) {
    for (const auto& [axis, from, to] : {std::tuple(FormAxis::kOptimizer, 0, 1),
                                         {FormAxis::kOptimizer, 1, 2},
                                         {FormAxis::kState, 0, 1},
                                         {FormAxis::kWeights, 0, 1},
                                         {FormAxis::kUpdate, 0, 1},
                                         {FormAxis::kActivations, 0, 2},
                                         {FormAxis::kActivations, 2, 3}}) {
      if (form.at(axis) != from) continue;
      const Rung* next = with(form, axis, to);
      if (next == nullptr) continue;
      ++num_compared;
      const bool only_buffers = axis == FormAxis::kOptimizer && form.at(FormAxis::kState) == 1;
      EXPECT_LT(next->memory_bytes, rung->memory_bytes + (only_buffers ? 1 : 0))
          << fmt::format("{}", fmt::join(form_words(form), " "));
      if (axis == FormAxis::kUpdate || axis == FormAxis::kActivations) {
        EXPECT_GE(next->time.step_s(), rung->time.step_s());
      }
    }
  }
  EXPECT_GT(num_compared, 200);
}

TEST(Form, WhatIsGivenStaysAsItIs) {
  const Limits small = {.memory_bytes = 2 * kGiB};
  const std::map<std::string, std::pair<FormAxis, std::string>> given = {
      {"--optim adamw_torch", {FormAxis::kOptimizer, "exact"}},
      {"--optim adamw_bf16", {FormAxis::kOptimizer, "bf16"}},
      {"--optim adamw_torch_fused", {FormAxis::kOptimizer, "exact"}},
      {"--optim lion_8bit", {FormAxis::kOptimizer, "given"}},
      {"--offload_optimizer_device cpu", {FormAxis::kState, "memory"}},
      {"--offload_optimizer_device nvme", {FormAxis::kState, "disk"}},
      {"--offload_param_device none", {FormAxis::kWeights, "memory"}},
      {"--optimizer_in_backward false", {FormAxis::kUpdate, "after"}},
      {"--gradient_checkpointing false", {FormAxis::kActivations, "kept"}},
      {"--gradient_checkpointing_mode offload", {FormAxis::kActivations, "kept disk"}}};
  for (const auto& [flag, expected] : given) {
    SCOPED_TRACE(flag);
    const Ladder ladder = plan_ladder(request_of({flag}, small));
    ASSERT_FALSE(ladder.rungs.empty());
    for (const Rung& rung : ladder.rungs) {
      EXPECT_THAT(expected.second, HasSubstr(form_words(rung.form)[static_cast<size_t>(expected.first)]));
      EXPECT_THAT(form_flags(ladder.args, rung.form), Not(testing::Contains(HasSubstr(flag))));
    }
  }
  for (const Rung& rung :
       plan_ladder(request_of({"--optimizer_in_backward", "--clip_mode layer"}, small)).rungs) {
    EXPECT_EQ(form_words(rung.form)[static_cast<size_t>(FormAxis::kUpdate)], "layer");
  }
  for (const Rung& rung : plan_ladder(request_of({"--max_grad_norm 0"}, small)).rungs) {
    EXPECT_EQ(rung.form.changes()[2], 0) << "without clipping, its norm is of no use";
  }
  for (const Rung& rung : plan_ladder(request_of({"--merge_micro_batches never"}, small)).rungs) {
    EXPECT_EQ(form_words(rung.form)[static_cast<size_t>(FormAxis::kUpdate)], "after");
  }
  for (const Rung& rung :
       plan_ladder(request_of({}, {.memory_bytes = 4 * kGiB, .local_world_size = 2})).rungs) {
    EXPECT_EQ(form_words(rung.form)[static_cast<size_t>(FormAxis::kWeights)], "memory") << "several ranks";
    EXPECT_NE(form_words(rung.form)[static_cast<size_t>(FormAxis::kUpdate)], "layer") << "several ranks";
  }
}

// What is chosen fits; nothing that fits is faster without changing the numbers more; and the same limits but
// for more of one never make the choice worse.
TEST(Ladder, ChoosesTheFastestOfWhatChangesTheNumbersLeast) {
  std::mt19937_64 random(11);
  const auto between = [&](double low, double high) {
    return static_cast<int64_t>(
        std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random)));
  };
  int num_chosen = 0, num_refused = 0;
  for (int round = 0; round < 20; ++round) {
    const Limits limits = {.memory_bytes = between(3e8, 6e9),
                           .disk_bytes = between(2e8, 6e9),
                           .local_world_size = round % 4 == 0 ? 2 : 1};
    SCOPED_TRACE(fmt::format("{} of memory, {} of disk, {} ranks", format_bytes(limits.memory_bytes),
                             format_bytes(limits.disk_bytes), limits.local_world_size));
    const Ladder ladder = plan_ladder(request_of({}, limits));
    const std::vector<size_t> shown = ladder.worth_having();
    (ladder.best ? num_chosen : num_refused) += 1;
    EXPECT_EQ(ladder.best.has_value(), !shown.empty());
    for (const Rung& rung : ladder.rungs) {
      EXPECT_EQ(rung.fits(), rung.memory_bytes <= limits.memory_bytes &&
                                 rung.disk_bytes_with(ladder.model_bytes) <= limits.disk_bytes);
      if (!rung.fits()) continue;
      ASSERT_TRUE(ladder.best);
      const Rung& best = ladder.rungs[*ladder.best];
      EXPECT_TRUE(best.fits());
      EXPECT_LE(best.form.changes(), rung.form.changes());
      if (rung.form.changes() == best.form.changes()) {
        EXPECT_LE(best.time.step_s(), rung.time.step_s());
      }
    }
    if (!ladder.best) continue;
    EXPECT_TRUE(std::ranges::find(shown, *ladder.best) != shown.end());
    EXPECT_EQ(ladder.fastest, shown.front());
    for (size_t i = 1; i < shown.size(); ++i) {
      EXPECT_GT(ladder.rungs[shown[i]].time.step_s(), 0.98 * ladder.rungs[shown[i - 1]].time.step_s());
    }
    Limits more = limits;
    (round % 2 == 0 ? more.memory_bytes : more.disk_bytes) *= 2;
    const Ladder larger = plan_ladder(request_of({}, more));
    ASSERT_TRUE(larger.best);
    EXPECT_LE(larger.rungs[*larger.best].form.changes(), ladder.rungs[*ladder.best].form.changes());
  }
  EXPECT_GT(num_chosen, 8);
  EXPECT_GT(num_refused, 2);
}

TEST(Ladder, SaysWhatTheLeastTakesAndThatAdaptersFit) {
  const LadderRequest request = request_of({}, {.memory_bytes = 1000 << 20, .disk_bytes = 400 << 20});
  const Ladder ladder = plan_ladder(request);
  ASSERT_FALSE(ladder.best);
  const std::string refusal = ladder_refusal(ladder, plan_lora_ladder(request));
  EXPECT_THAT(refusal, HasSubstr("no form of the run fits into 1000 MiB of memory and 400.0 MiB of disk"));
  EXPECT_THAT(refusal,
              HasSubstr("the least memory takes --optim adamw_8bit --offload_optimizer_device nvme"));
  EXPECT_THAT(refusal, HasSubstr("adapters fit: --peft lora with "));
  EXPECT_EQ(refusal.find('\n'), std::string::npos);
  EXPECT_FALSE(plan_lora_ladder(request_of({"--finetuning_type full"}, {}))) << "given";
  EXPECT_THAT(form_advice(request), HasSubstr("; --peft lora would fit with "));
  LadderRequest larger = request;
  larger.free_disk_bytes = 8 * kGiB;
  EXPECT_THAT(form_advice(larger), HasSubstr("; --fit would take --"));
  const LadderRequest adapters = request_of({"--finetuning_type lora"},
                                            {.memory_bytes = 10 * kGiB, .disk_bytes = 4 * kGiB}, "llama3-8b");
  EXPECT_THAT(form_advice(adapters),
              AllOf(HasSubstr("; --fit would take "), HasSubstr(" --quantization_bit 8 ")));
  EXPECT_THAT(form_advice(request_of({}, {10 * kGiB, 4 * kGiB}, "llama3-8b")),
              AllOf(HasSubstr("; --peft lora would fit with "), HasSubstr(" --quantization_bit 8 ")));
}

TEST(Ladder, IsShownIn80ColumnsAndAsJson) {
  for (const auto& [memory_mib, type] : {std::pair<int64_t, const char*>{300, "full"},
                                         {1200, "full"},
                                         {3000, "full"},
                                         {64000, "full"},
                                         {300, "lora"},
                                         {64000, "lora"}}) {
    const Ladder ladder =
        plan_ladder(request_of({fmt::format("--finetuning_type {}", type)}, {memory_mib << 20, 4 * kGiB}));
    const std::string text = ladder_text(ladder);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    EXPECT_EQ(text.find("best     ") != std::string::npos, ladder.best.has_value());
    const nlohmann::json out = nlohmann::json::parse(ladder_json(ladder));
    EXPECT_EQ(out["forms"].size(), ladder.rungs.size());
    EXPECT_EQ(out["best"].is_null(), !ladder.best.has_value());
    if (ladder.best) {
      EXPECT_EQ(out["forms"][*ladder.best]["fits"], true);
      EXPECT_EQ(out["forms"][*ladder.best]["lacks"], "");
    }
  }
}

// The weights beside adapters of 8 billion parameters: in bfloat16 where they fit, in fewer bits where not.
TEST(Ladder, WeightsBesideAdaptersAreRoundedOnlyIfNeedBe) {
  const auto with = [&](std::vector<std::string> words, int64_t memory_gib) {
    words.insert(words.end(), {"--finetuning_type lora", "--offload_param_device none"});
    return plan_ladder(request_of(words, {memory_gib * kGiB, 80'000'000'000}, "llama3-8b"));
  };
  for (const auto& [memory_gib, base] :
       {std::pair<int64_t, const char*>{24, "bf16"}, {12, "int8"}, {8, "nf4"}}) {
    SCOPED_TRACE(memory_gib);
    const Ladder ladder = with({}, memory_gib);
    ASSERT_TRUE(ladder.best);
    EXPECT_EQ(words_of(ladder).back(), base);
    EXPECT_EQ(words_of(ladder).front(), "exact");
    EXPECT_THAT(ladder_text(ladder), HasSubstr("optim  state  weights base     outputs"));
    EXPECT_EQ(ladder.rungs[*ladder.best].form.changes()[0] > 0,
              testing::Value(choice_text(ladder), HasSubstr("frozen weights in ")));
  }
  for (const auto& [flag, base] : {std::pair{"--quantization_bit 4", "nf4"},
                                   {"--quantization_bit 8", "int8"},
                                   {"--quantization_bit none", "bf16"},
                                   {"--load_in_4bit", "given"}}) {
    SCOPED_TRACE(flag);
    const Ladder ladder = with({flag}, 24);
    ASSERT_FALSE(ladder.rungs.empty());
    for (const Rung& rung : ladder.rungs) {
      EXPECT_EQ(form_words(rung.form).back(), base);
      EXPECT_THAT(form_flags(ladder.args, rung.form), Not(testing::Contains(HasSubstr("--quantization"))));
    }
  }
}

// On a disk they need not be rounded, where there is one rank.
TEST(Ladder, WeightsBesideAdaptersGoToADiskRatherThanBeRounded) {
  const auto with = [](int64_t memory_gib, int local_world_size) {
    return plan_ladder(request_of({"--finetuning_type lora"},
                                  {memory_gib * kGiB, 80'000'000'000, local_world_size}, "llama3-8b"));
  };
  const Ladder ladder = with(6, 1);
  ASSERT_TRUE(ladder.best);
  EXPECT_EQ(words_of(ladder)[2], "disk");
  EXPECT_EQ(words_of(ladder).back(), "bf16");
  const Rung& best = ladder.rungs[*ladder.best];
  EXPECT_EQ(best.disk_bytes / kGiB, 13) << "all decoder layers";
  EXPECT_GT(best.time.disk_s, 20) << "read twice at 1 GB/s";
  for (const Rung& rung : with(24, 2).rungs) EXPECT_EQ(form_words(rung.form)[2], "memory");
}

// Integer products take half as long as those of bfloat16.
TEST(Ladder, TheFastestIsTakenWhereItIsAskedFor) {
  LadderRequest request = request_of({"--finetuning_type lora"}, {}, "llama3-8b");
  request.rates = rates_of_instance({.num_cores = 2, .clock_ghz = 3, .avx512_bf16 = true});
  const Ladder ladder = plan_ladder(request);
  EXPECT_EQ(ladder.taken(), ladder.best);
  EXPECT_EQ(words_of(ladder).back(), "bf16");
  EXPECT_EQ(form_words(ladder.rungs[*ladder.fastest].form).back(), "int8");
  EXPECT_THAT(ladder_text(ladder), HasSubstr("fastest  --quantization_bit 8\n"));
  request.args.placement.fit_choice = FitChoice::kFastest;
  const Ladder fastest = plan_ladder(request);
  EXPECT_EQ(fastest.taken(), fastest.fastest);
  EXPECT_EQ(fastest.fastest, ladder.fastest);
  EXPECT_THAT(choice_text(fastest), HasSubstr("the fastest (frozen weights in int8)"));
  for (const Rung& rung : fastest.rungs) {
    EXPECT_GE(rung.time.step_s(), 0.98 * fastest.rungs[*fastest.fastest].time.step_s());
  }
}

// 8 billion parameters on 24 GiB and 80 GB: the shape for which the forms exist.
TEST(Ladder, EightBillionParametersFitIntoALaptop) {
  const Ladder ladder = plan_ladder(request_of({}, {24 * kGiB, 80'000'000'000}, "llama3-8b"));
  ASSERT_TRUE(ladder.best);
  EXPECT_EQ(words_of(ladder)[0], "bf16")
      << "exact state of 10 bytes a parameter does not fit on the disk beside the model";
  EXPECT_EQ(words_of(ladder)[1], "disk");
  const Ladder with_disk = plan_ladder(request_of({}, {24 * kGiB, 150'000'000'000}, "llama3-8b"));
  EXPECT_EQ(words_of(with_disk)[0], "exact");
}

}  // namespace
}  // namespace tessera
