// The options of a run, and the choice among them, on machines whose rates are given.
#include "forecast/fit/fit_options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/model_config.h"
#include "settings/derived.h"
#include "support/draws.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

// A command line as a run of world_size ranks resolves it.
RunSettings parsed(const std::vector<std::string>& words, int world_size = 1) {
  RunSettings spec;
  FlagTable table;
  declare_training_flags(&table, &spec);
  for (const std::string& word : words) {
    const size_t space = word.find(' ');
    const std::string name = word.substr(2, space - 2);
    table.set(*table.find(name), {space == std::string::npos ? "true" : word.substr(space + 1)}, "test");
  }
  spec = read_run_spec(table, spec, world_size);
  return spec;
}

struct Limits {
  int64_t memory_bytes = 64 * kGiB;
  int64_t disk_bytes = kUnlimited;
  int local_world_size = 1;
};

FitRequest request_of(std::vector<std::string> words, const Limits& limits, const char* preset = "160m") {
  words.insert(words.end(), {"--fit", "--max_length 512", "--per_device_train_batch_size 2"});
  ClusterShape cluster;
  cluster.local_world_size = limits.local_world_size;
  cluster.node_memory_bytes = limits.memory_bytes;
  cluster.rates = rates_of_instance({.num_cores = 2, .clock_ghz = 3});
  ModelConfig config = preset_config(preset);
  if (config.vocab_size == 0) config.vocab_size = 32000;
  JobSize job;
  job.max_row_tokens = job.mean_row_tokens = 512;
  const RunSpec spec = parsed(words, limits.local_world_size);
  config.lora = lora_config_of(spec.lora, spec.model);
  config.base_quantization = base_quantization_of(spec.base);
  return fit_request(spec, config, cluster, 1, job, limits.disk_bytes);
}

std::vector<std::string> words_of(const FitOptions& options) {
  if (!options.best) return {};
  const auto words = options.all[*options.best].words;
  return {words.begin(), words.end()};
}

TEST(FitCandidate, AnAmpleMachineTakesTheExactOneInMemory) {
  const FitOptions options = fit_options(request_of({}, {}));
  EXPECT_THAT(words_of(options), ElementsAre("exact", "memory", "memory", "after", "kept", "bf16"));
  EXPECT_TRUE(candidate_flags(options.spec, options.all[*options.best].candidate).empty());
  EXPECT_EQ(options.all[*options.best].disk_bytes, 0);
}

// Every candidate comes back from its flags, with the memory that its option says.
TEST(FitCandidate, FlagsParseBackIntoTheSamePlan) {
  for (const char* type : {"--finetuning_type full", "--finetuning_type lora"}) {
    const FitRequest request = request_of({type}, {.memory_bytes = 4 * kGiB});
    const FitOptions options = fit_options(request);
    EXPECT_GT(options.all.size(), 60u);
    for (size_t i = 0; i < options.all.size(); i += sanitizer_stride()) {
      const FitOption& option = options.all[i];
      std::vector<std::string> words = candidate_flags(options.spec, option.candidate);
      SCOPED_TRACE(fmt::format("{}", fmt::join(words, " ")));
      words.insert(words.end(), {type, "--max_length 512", "--per_device_train_batch_size 2"});
      const RunSpec spec = parsed(words);
      RunSettings chosen = with_candidate(request.spec, option.candidate, 1);
      EXPECT_EQ(training_arguments_json(spec), training_arguments_json(chosen));
      ClusterShape cluster;
      cluster.node_memory_bytes = 4 * kGiB;
      ModelConfig config = request.config;
      config.base_quantization = base_quantization_of(spec.base);
      const RunForecast forecast = forecast_run(spec, config, cluster, 1);
      EXPECT_EQ(forecast.refusal.empty(), option.fits_memory);
      EXPECT_EQ(forecast.disk.offload_bytes, option.disk_bytes);
    }
  }
}

TEST(FitCandidate, EveryStepDownTakesLessOfWhatItIsFor) {
  const FitOptions options = fit_options(request_of({"--pack_weights never"}, {}));
  using Words = std::array<std::string, kNumFitAxes>;
  std::map<Words, const FitOption*> by_words;
  for (const FitOption& option : options.all) by_words[option.words] = &option;
  int num_compared = 0;
  for (const auto& [words, option] : by_words) {
    for (const auto& [axis, from, to] : {std::tuple(FitAxis::kOptimizer, "exact", "bf16"),
                                         {FitAxis::kOptimizer, "bf16", "8-bit"},
                                         {FitAxis::kState, "memory", "disk"},
                                         {FitAxis::kWeights, "memory", "disk"},
                                         {FitAxis::kUpdate, "after", "twice"},
                                         {FitAxis::kActivations, "kept", "full"},
                                         {FitAxis::kActivations, "full", "disk"}}) {
      if (option->word(axis) != from) continue;
      Words lower = words;
      lower[static_cast<size_t>(axis)] = to;
      const auto found = by_words.find(lower);
      if (found == by_words.end()) continue;
      const FitOption* next = found->second;
      ++num_compared;
      const bool only_buffers = axis == FitAxis::kOptimizer && option->word(FitAxis::kState) == "disk";
      EXPECT_LT(next->memory_bytes, option->memory_bytes + (only_buffers ? 1 : 0))
          << fmt::format("{}", fmt::join(words, " "));
      if (axis == FitAxis::kUpdate || axis == FitAxis::kActivations) {
        EXPECT_GE(next->time.step_s(), option->time.step_s());
      }
    }
  }
  EXPECT_GT(num_compared, 200);
}

TEST(FitCandidate, WhatIsGivenStaysAsItIs) {
  const Limits small = {.memory_bytes = 2 * kGiB};
  const std::map<std::string, std::pair<FitAxis, std::string>> given = {
      {"--optim adamw_torch", {FitAxis::kOptimizer, "exact"}},
      {"--optim adamw_bf16", {FitAxis::kOptimizer, "bf16"}},
      {"--optim adamw_torch_fused", {FitAxis::kOptimizer, "exact"}},
      {"--optim lion_8bit", {FitAxis::kOptimizer, "given"}},
      {"--offload_optimizer_device cpu", {FitAxis::kState, "memory"}},
      {"--offload_optimizer_device nvme", {FitAxis::kState, "disk"}},
      {"--offload_param_device none", {FitAxis::kWeights, "memory"}},
      {"--optimizer_in_backward false", {FitAxis::kUpdate, "after"}},
      {"--gradient_checkpointing false", {FitAxis::kActivations, "kept"}},
      {"--gradient_checkpointing_mode offload", {FitAxis::kActivations, "kept disk"}}};
  for (const auto& [flag, expected] : given) {
    SCOPED_TRACE(flag);
    const FitOptions options = fit_options(request_of({flag}, small));
    ASSERT_FALSE(options.all.empty());
    for (const FitOption& option : options.all) {
      EXPECT_THAT(expected.second, HasSubstr(option.word(expected.first)));
      EXPECT_THAT(candidate_flags(options.spec, option.candidate), Not(testing::Contains(HasSubstr(flag))));
    }
  }
  for (const FitOption& option :
       fit_options(request_of({"--optimizer_in_backward", "--clip_mode layer"}, small)).all) {
    EXPECT_EQ(option.word(FitAxis::kUpdate), "layer");
  }
  for (const FitOption& option : fit_options(request_of({"--max_grad_norm 0"}, small)).all) {
    EXPECT_EQ(option.changes[2], 0) << "without clipping, its norm is of no use";
  }
  for (const FitOption& option : fit_options(request_of({"--merge_micro_batches never"}, small)).all) {
    EXPECT_EQ(option.word(FitAxis::kUpdate), "after");
  }
  for (const FitOption& option :
       fit_options(request_of({}, {.memory_bytes = 4 * kGiB, .local_world_size = 2})).all) {
    EXPECT_EQ(option.word(FitAxis::kWeights), "memory") << "several ranks";
    EXPECT_NE(option.word(FitAxis::kUpdate), "layer") << "several ranks";
  }
}

// The chosen option fits; nothing that fits is faster without changing the numbers more; and raising one
// limit never makes the choice worse.
TEST(FitOptions, ChoosesTheFastestOfWhatChangesTheNumbersLeast) {
  std::mt19937_64 random(11);
  const auto between = [&](double low, double high) {
    return static_cast<int64_t>(
        std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random)));
  };
  int num_chosen = 0, num_refused = 0;
  const auto num_rounds = static_cast<int>(draws(20, 3));
  for (int round = 0; round < num_rounds; ++round) {
    const Limits limits = {.memory_bytes = between(3e8, 6e9),
                           .disk_bytes = between(2e8, 6e9),
                           .local_world_size = round % 4 == 0 ? 2 : 1};
    SCOPED_TRACE(fmt::format("{} of memory, {} of disk, {} ranks", format_bytes(limits.memory_bytes),
                             format_bytes(limits.disk_bytes), limits.local_world_size));
    const FitOptions options = fit_options(request_of({}, limits));
    const std::vector<size_t> shown = options.worth_having();
    (options.best ? num_chosen : num_refused) += 1;
    EXPECT_EQ(options.best.has_value(), !shown.empty());
    for (const FitOption& option : options.all) {
      EXPECT_EQ(option.fits(), option.memory_bytes <= limits.memory_bytes &&
                                   option.disk_bytes_with(options.model_bytes) <= limits.disk_bytes);
      if (!option.fits()) continue;
      ASSERT_TRUE(options.best);
      const FitOption& best = options.all[*options.best];
      EXPECT_TRUE(best.fits());
      EXPECT_LE(best.changes, option.changes);
      if (option.changes == best.changes) {
        EXPECT_LE(best.time.step_s(), option.time.step_s());
      }
    }
    if (!options.best) continue;
    EXPECT_TRUE(std::ranges::find(shown, *options.best) != shown.end());
    EXPECT_EQ(options.fastest, shown.front());
    for (size_t i = 1; i < shown.size(); ++i) {
      EXPECT_GT(options.all[shown[i]].time.step_s(), 0.98 * options.all[shown[i - 1]].time.step_s());
    }
    Limits more = limits;
    (round % 2 == 0 ? more.memory_bytes : more.disk_bytes) *= 2;
    const FitOptions larger = fit_options(request_of({}, more));
    ASSERT_TRUE(larger.best);
    EXPECT_LE(larger.all[*larger.best].changes, options.all[*options.best].changes);
  }
  EXPECT_GT(num_chosen, num_rounds * 2 / 5);
  EXPECT_GT(num_refused, num_rounds / 10);
}

TEST(FitOptions, SaysWhatTheLeastTakesAndThatAdaptersFit) {
  const FitRequest request = request_of({}, {.memory_bytes = 1000 << 20, .disk_bytes = 400 << 20});
  const FitOptions options = fit_options(request);
  ASSERT_FALSE(options.best);
  const std::string refusal = fit_refusal(options, lora_fit_options(request));
  EXPECT_THAT(refusal, HasSubstr("no form of the run fits into 1000 MiB of memory and 400.0 MiB of disk"));
  EXPECT_THAT(refusal,
              HasSubstr("the least memory takes --optim adamw_8bit --offload_optimizer_device nvme"));
  EXPECT_THAT(refusal, HasSubstr("adapters fit: --peft lora with "));
  EXPECT_EQ(refusal.find('\n'), std::string::npos);
  EXPECT_FALSE(lora_fit_options(request_of({"--finetuning_type full"}, {}))) << "given";
  EXPECT_THAT(fit_advice(request), HasSubstr("; --peft lora would fit with "));
  FitRequest larger = request;
  larger.free_disk_bytes = 8 * kGiB;
  EXPECT_THAT(fit_advice(larger), HasSubstr("; --fit would take --"));
  const FitRequest adapters = request_of({"--finetuning_type lora"},
                                         {.memory_bytes = 10 * kGiB, .disk_bytes = 4 * kGiB}, "llama3-8b");
  EXPECT_THAT(fit_advice(adapters),
              AllOf(HasSubstr("; --fit would take "), HasSubstr(" --quantization_bit 8 ")));
  EXPECT_THAT(fit_advice(request_of({}, {10 * kGiB, 4 * kGiB}, "llama3-8b")),
              AllOf(HasSubstr("; --peft lora would fit with "), HasSubstr(" --quantization_bit 8 ")));
}

TEST(FitOptions, IsShownIn80ColumnsAndAsJson) {
  for (const auto& [memory_mib, type] : {std::pair<int64_t, const char*>{300, "full"},
                                         {1200, "full"},
                                         {3000, "full"},
                                         {64000, "full"},
                                         {300, "lora"},
                                         {64000, "lora"}}) {
    const FitOptions options =
        fit_options(request_of({fmt::format("--finetuning_type {}", type)}, {memory_mib << 20, 4 * kGiB}));
    const std::string text = fit_text(options);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    EXPECT_EQ(text.find("best     ") != std::string::npos, options.best.has_value());
    const nlohmann::json out = nlohmann::json::parse(fit_json(options));
    EXPECT_EQ(out["forms"].size(), options.all.size());
    EXPECT_EQ(out["best"].is_null(), !options.best.has_value());
    if (options.best) {
      EXPECT_EQ(out["forms"][*options.best]["fits"], true);
      EXPECT_EQ(out["forms"][*options.best]["lacks"], "");
    }
  }
}

// The weights beside adapters of 8 billion parameters: in bfloat16 where they fit, in fewer bits where not.
TEST(FitOptions, WeightsBesideAdaptersAreRoundedOnlyIfNeedBe) {
  const auto with = [&](std::vector<std::string> words, int64_t memory_gib) {
    words.insert(words.end(), {"--finetuning_type lora", "--offload_param_device none"});
    return fit_options(request_of(words, {memory_gib * kGiB, 80'000'000'000}, "llama3-8b"));
  };
  for (const auto& [memory_gib, base] :
       {std::pair<int64_t, const char*>{24, "bf16"}, {12, "int8"}, {8, "nf4"}}) {
    SCOPED_TRACE(memory_gib);
    const FitOptions options = with({}, memory_gib);
    ASSERT_TRUE(options.best);
    EXPECT_EQ(words_of(options).back(), base);
    EXPECT_EQ(words_of(options).front(), "exact");
    EXPECT_THAT(fit_text(options), HasSubstr("optim  state  weights base     outputs"));
    EXPECT_EQ(options.all[*options.best].changes[0] > 0,
              testing::Value(choice_text(options), HasSubstr("frozen weights in ")));
  }
  for (const auto& [flag, base] : {std::pair{"--quantization_bit 4", "nf4"},
                                   {"--quantization_bit 8", "int8"},
                                   {"--quantization_bit none", "bf16"},
                                   {"--load_in_4bit", "given"}}) {
    SCOPED_TRACE(flag);
    const FitOptions options = with({flag}, 24);
    ASSERT_FALSE(options.all.empty());
    for (const FitOption& option : options.all) {
      EXPECT_EQ(option.words.back(), base);
      EXPECT_THAT(candidate_flags(options.spec, option.candidate),
                  Not(testing::Contains(HasSubstr("--quantization"))));
    }
  }
}

// On a disk they need not be rounded, where there is one rank.
TEST(FitOptions, WeightsBesideAdaptersGoToADiskRatherThanBeRounded) {
  const auto with = [](int64_t memory_gib, int local_world_size) {
    return fit_options(request_of({"--finetuning_type lora"},
                                  {memory_gib * kGiB, 80'000'000'000, local_world_size}, "llama3-8b"));
  };
  const FitOptions options = with(6, 1);
  ASSERT_TRUE(options.best);
  EXPECT_EQ(words_of(options)[2], "disk");
  EXPECT_EQ(words_of(options).back(), "bf16");
  const FitOption& best = options.all[*options.best];
  EXPECT_EQ(best.disk_bytes / kGiB, 13) << "all decoder layers";
  EXPECT_GT(best.time.disk_s, 20) << "read twice at 1 GB/s";
  for (const FitOption& option : with(24, 2).all) EXPECT_EQ(option.words[2], "memory");
}

// Integer products take half as long as those of bfloat16.
TEST(FitOptions, TheFastestIsTakenWhereItIsAskedFor) {
  const auto options_with = [](const std::string& choice) {
    FitRequest request = request_of({"--finetuning_type lora", "--fit_choice " + choice}, {}, "llama3-8b");
    request.rates = rates_of_instance({.num_cores = 2, .clock_ghz = 3, .avx512_bf16 = true});
    return fit_options(request);
  };
  const FitOptions options = options_with("best");
  EXPECT_EQ(options.taken(), options.best);
  EXPECT_EQ(words_of(options).back(), "bf16");
  EXPECT_EQ(options.all[*options.fastest].words.back(), "int8");
  EXPECT_THAT(fit_text(options), HasSubstr("fastest  --quantization_bit 8\n"));
  const FitOptions fastest = options_with("fastest");
  EXPECT_EQ(fastest.taken(), fastest.fastest);
  EXPECT_EQ(fastest.fastest, options.fastest);
  EXPECT_THAT(choice_text(fastest), HasSubstr("the fastest (frozen weights in int8)"));
  for (const FitOption& option : fastest.all) {
    EXPECT_GE(option.time.step_s(), 0.98 * fastest.all[*fastest.fastest].time.step_s());
  }
}

// 8 billion parameters on 24 GiB and 80 GB: the shape for which the forms exist.
TEST(FitOptions, EightBillionParametersFitIntoALaptop) {
  const FitOptions options = fit_options(request_of({}, {24 * kGiB, 80'000'000'000}, "llama3-8b"));
  ASSERT_TRUE(options.best);
  EXPECT_EQ(words_of(options)[0], "bf16")
      << "exact state of 10 bytes a parameter does not fit on the disk beside the model";
  EXPECT_EQ(words_of(options)[1], "disk");
  const FitOptions with_disk = fit_options(request_of({}, {24 * kGiB, 150'000'000'000}, "llama3-8b"));
  EXPECT_EQ(words_of(with_disk)[0], "exact");
}

}  // namespace
}  // namespace tessera
