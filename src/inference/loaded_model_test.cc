// A model folder that a command runs on a device whose memory the host cannot reach.
#include "inference/loaded_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "expect_error.h"
#include "io/file.h"
#include "model/llama/llama_generator.h"
#include "ops/cpu_ops.h"
#include "support/isolated_device.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

std::unique_ptr<Ops> isolated_ops(ThreadPool& pool) { return std::make_unique<OwnedIsolatedOps>(pool); }

// Logits after a prompt and one more token, and the loss of some rows.
std::vector<double> results_of(LoadedModel& loaded) {
  LlamaGenerator generator(loaded.model(), /*capacity=*/16, /*max_chunk=*/2);
  std::vector<double> results;
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{1, 5, 3}, std::vector<int32_t>{2}}) {
    const std::span<const float> logits = generator.feed(ids);
    results.insert(results.end(), logits.begin(), logits.end());
  }
  const PackedBatch batch = pack(random_rows({9, 4}, loaded.config().vocab_size, /*seed=*/2));
  ActivationLimits limits = limits_of(batch);
  limits.training = false;
  limits.pack_weights = true;
  loaded.model().reserve(limits);
  results.push_back(loaded.model().forward_loss(batch).loss_sum);
  return results;
}

TEST(LoadedModel, ComputesOnADeviceWhatTheHostDoes) {
  TinyRun run;
  run.spec.lora.finetuning_type = FinetuningType::kLora;
  run.spec.lora.rank = 2;
  run.spec.batch.max_steps = 2;
  run.train();
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    std::vector<double> of_base;
    for (const std::string& adapter : {std::string(), run.spec.output_dir}) {
      SCOPED_TRACE(fmt::format("{} '{}'", dtype_name(dtype), adapter));
      LoadedModel here({run.spec.model.folder, adapter, ""}, dtype, make_cpu_ops, pool);
      LoadedModel there({run.spec.model.folder, adapter, ""}, dtype, isolated_ops, pool);
      const std::vector<double> expected = results_of(here);
      EXPECT_EQ(results_of(there), expected);
      EXPECT_NE(expected, of_base) << "the adapter counts";
      of_base = expected;
    }
  }
}

TEST(LoadedModel, TextsEndWhereItsFilesAndTheAdaptersSay) {
  TinyRun run;
  run.spec.lora.finetuning_type = FinetuningType::kLora;
  run.spec.batch.max_steps = 1;
  run.train();
  ThreadPool pool(1);
  const auto ends_with = [&](const std::string& of_model, const std::string& of_adapter) {
    write_text_file(std::filesystem::path(run.spec.model.folder) / "generation_config.json", of_model);
    write_text_file(std::filesystem::path(run.spec.output_dir) / "generation_config.json", of_adapter);
    const LoadedModel loaded({run.spec.model.folder, run.spec.output_dir, ""}, DType::kF32, make_cpu_ops,
                             pool);
    std::set<int64_t> ids(loaded.end_ids().begin(), loaded.end_ids().end());
    for (const int64_t id : loaded.config().eos_token_ids) EXPECT_EQ(ids.erase(id), 1u) << id;
    return ids;
  };
  EXPECT_EQ(ends_with("{}", R"({"eos_token_id": null})"), std::set<int64_t>());
  EXPECT_EQ(ends_with(R"({"eos_token_id": 11})", R"({"eos_token_id": [12, 13]})"),
            (std::set<int64_t>{11, 12, 13}));
}

TEST(LoadedModel, MustFitIntoTheDevice) {
  const TinyRun run;
  ThreadPool pool(1);
  const OpsFactory small = [](ThreadPool& threads) {
    return std::make_unique<OwnedIsolatedOps>(threads, 1 << 10);
  };
  expect_error(ExitCode::kBadConfig, {"the weights take", "1.00 KiB of memory are free on isolated"}, [&] {
    LoadedModel({run.spec.model.folder, "", ""}, DType::kF32, small, pool);
  });
}

TEST(LoadedModel, HasOneRankOnADevice) {
  const TinyRun run;
  expect_error(ExitCode::kBadConfig, {"a job of 2 ranks is not available on isolated"}, [&] {
    run_ranks({1, 2}, [&](Communicator& comm) {
      ThreadPool pool(1);
      LoadedModel({run.spec.model.folder, "", ""}, DType::kF32, isolated_ops, pool, {}, comm);
    });
  });
}

}  // namespace
}  // namespace tessera
