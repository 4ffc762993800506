// The checkpoint a run resumes from, and the ones it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "expect_error.h"
#include "io/file.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

TEST(Resume, PathMayBeOfAnotherFolder) {
  SavingRun run;
  run.run();
  SavingRun other = run;
  other.spec.output_dir = run.folder() / "other";
  other.spec.resume = parse_resume(run.output() / "checkpoint-4");
  const RecordingObserver seen = other.run();
  EXPECT_EQ(seen.steps.size(), 2u);
  EXPECT_EQ(read_tensors(other.output()), read_tensors(run.output()));
  EXPECT_EQ(metrics_of(other.output()).size(), 2u);
  EXPECT_TRUE(fs::exists(run.output() / "checkpoint-6"));
}

// Changes a byte in the middle of the largest optimizer state file.
void damage(const fs::path& checkpoint) {
  fs::path largest;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint / "tessera")) {
    if (entry.path().extension() != ".safetensors") continue;
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  std::string bytes = read_text_file(largest);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x40);
  std::ofstream(largest, std::ios::binary) << bytes;
}

// A run restarted by an agent resumes from checkpoints of its own starts, not from the given path again.
TEST(Resume, RestartGoesOnBehindTheCheckpointThatWasAskedFor) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.run();
    SavingRun launched = run;
    launched.spec.output_dir = run.folder() / "launched";
    launched.spec.resume = parse_resume(run.output() / "checkpoint-2");
    launched.spec.launch.id = "this";
    EXPECT_EQ(launched.run().resumed_step, 2);
    // The state after a crash following step 4.
    for (const char* name : {"checkpoint-5", "checkpoint-6"}) fs::remove_all(launched.output() / name);
    SavingRun again = launched;
    again.spec.launch.is_restart = true;
    EXPECT_EQ(again.run().resumed_step, 4);
    // Damaged checkpoints give way to earlier ones, and finally to the one that was requested.
    damage(launched.output() / "checkpoint-6");
    damage(launched.output() / "checkpoint-5");
    EXPECT_EQ(again.run().resumed_step, 4);
    for (const char* name : {"checkpoint-3", "checkpoint-4", "checkpoint-5", "checkpoint-6"}) {
      damage(launched.output() / name);
    }
    EXPECT_EQ(again.run().resumed_step, 2);
    EXPECT_EQ(read_tensors(launched.output()), read_tensors(run.output()));
  }
}

TEST(Resume, RestartTakesNothingOfAnotherLaunch) {
  SavingRun run;
  run.run();
  SavingRun former = run;
  former.spec.launch.id = "former";
  former.spec.output_dir = run.folder() / "out";
  former.run();
  // The first start of this launch ended before it could move the previous launch's checkpoints aside.
  SavingRun again = former;
  again.spec.resume = parse_resume(run.output() / "checkpoint-3");
  again.spec.launch.id = "this";
  again.spec.launch.is_restart = true;
  EXPECT_EQ(again.run().resumed_step, 3);
  EXPECT_TRUE(fs::exists(former.output() / "previous-1/checkpoint-6"));
}

TEST(Resume, LaterCheckpointsOfTheFolderAreMovedAside) {
  SavingRun run;
  run.run();
  const auto expected = tensor_files(run.output() / "checkpoint-6");
  SavingRun again = run;
  again.spec.resume = parse_resume(run.output() / "checkpoint-4");
  EXPECT_EQ(again.run().steps.size(), 2u);
  EXPECT_EQ(tensor_files(run.output() / "previous-1/checkpoint-6"), expected);
  EXPECT_EQ(tensor_files(run.output() / "checkpoint-6"), expected);
  EXPECT_EQ(metrics_of(run.output()).size(), 6u);
}

TEST(Resume, WithoutACheckpointIsAFreshStartOrAnError) {
  SavingRun run;
  run.spec.resume = parse_resume("true");
  expect_error(ExitCode::kNoInput, {"resume_from_checkpoint true", run.output().string(), "auto"},
               [&] { run.run(); });
  run.spec.resume = parse_resume("auto");
  EXPECT_EQ(run.run().steps.size(), 6u);
  run.spec.resume = parse_resume(run.folder() / "nowhere");
  expect_error(ExitCode::kNoInput, {"nowhere"}, [&] { run.run(); });
}

TEST(Resume, FinishedRunIsLeftAsItIs) {
  SavingRun run;
  run.run();
  const std::string state = read_text_file(run.output() / "trainer_state.json");
  const fs::file_time_type written = fs::last_write_time(run.output() / "model.safetensors");
  run.spec.resume = parse_resume("auto");
  const RecordingObserver seen = run.run();
  EXPECT_TRUE(seen.steps.empty());
  EXPECT_EQ(read_text_file(run.output() / "trainer_state.json"), state);
  EXPECT_EQ(fs::last_write_time(run.output() / "model.safetensors"), written);
}

TEST(Resume, FinishedRunWithoutItsModelIsNotFinished) {
  for (const Ranks ranks : {Ranks{1, 1}, Ranks{1, 2}}) {
    for (const FinetuningType type : {FinetuningType::kFull, FinetuningType::kLora}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", type, ranks.world_size()));
      SavingRun run(ranks);
      run.spec.lora.finetuning_type = type;
      run.run();
      run.spec.resume = parse_resume("auto");
      const std::string weights =
          type == FinetuningType::kLora ? "adapter_model.safetensors" : "model.safetensors";
      const std::string config = type == FinetuningType::kLora ? "adapter_config.json" : "config.json";
      const std::string expected = read_text_file(run.output() / weights);
      for (const auto& damage : std::vector<std::function<void()>>{
               [&] { fs::remove(run.output() / weights); },
               [&] { fs::resize_file(run.output() / weights, fs::file_size(run.output() / weights) - 1); },
               [&] { fs::remove(run.output() / config); }}) {
        damage();
        EXPECT_TRUE(run.run().steps.empty());
        EXPECT_EQ(read_text_file(run.output() / weights), expected);
        EXPECT_TRUE(fs::exists(run.output() / config));
      }
    }
  }
}

// The model in the folder is from an earlier end of run, not from the run that resumed at an earlier step.
TEST(Resume, FormerEndIsNotThatOfTheRunThatWentOn) {
  SavingRun run;
  run.spec.batch.max_steps = 5;
  run.run();
  SavingRun again = run;
  again.spec.resume = parse_resume(run.output() / "checkpoint-2");
  again.spec.schedule.learning_rate = 5e-3;
  again.spec.batch.max_steps = 6;
  ASSERT_EQ(again.run_until_signal(3).summary.num_steps, 5);
  EXPECT_TRUE(fs::exists(run.output() / "previous-1/trainer_state.json"));
  again.spec.resume = parse_resume("auto");
  again.spec.batch.max_steps = 5;
  EXPECT_TRUE(again.run().steps.empty());
  EXPECT_EQ(read_tensors(again.output()), read_tensors(again.output() / "checkpoint-5"));
}

TEST(Resume, ModelThatWasNotWrittenYetIsWritten) {
  SavingRun run;
  run.run();
  const auto weights = read_tensors(run.output());
  for (const char* name : {"trainer_state.json", "model.safetensors"}) fs::remove(run.output() / name);
  run.spec.resume = parse_resume("auto");
  EXPECT_TRUE(run.run().steps.empty());
  EXPECT_EQ(read_tensors(run.output()), weights);
}

TEST(Resume, WhatCannotChangeIsRefusedTogether) {
  SavingRun run;
  run.run();
  run.spec.resume = parse_resume("true");
  run.spec.data.seed = 7;
  run.spec.data.max_length = 5;
  run.spec.data.allow_truncation = true;
  run.spec.batch.accumulation_steps = 2;
  expect_error(ExitCode::kBadConfig,
               {"checkpoint-6", "seed 42 -> 7", "max_length", "-> 5", "tokens of dataset 126 -> 70",
                "contents of dataset", "rows of a step 4 -> 2"},
               [&] { run.run(); });
  SavingRun other = run;
  ModelConfig config = tiny_config();
  config.num_hidden_layers += 1;
  write_test_model(run.folder() / "deeper", config);
  other.spec.data.seed.reset();
  other.spec.data.max_length.reset();
  other.spec.batch.accumulation_steps = 4;
  other.spec.model.folder = run.folder() / "deeper";
  other.spec.data.dataset = run.spec.data.dataset;
  other.spec.resume = parse_resume(run.output() / "checkpoint-6");
  expect_error(ExitCode::kBadConfig,
               {fmt::format("model num_hidden_layers {} -> {}", config.num_hidden_layers - 1,
                            config.num_hidden_layers)},
               [&] { other.run(); });
}

TEST(Resume, WhatMayChangeWithEffectIsNoted) {
  SavingRun run;
  run.spec.optimizer.form = OptimizerForm::kMuon;
  run.run();
  run.spec.resume = parse_resume("true");
  run.spec.batch.max_steps = 8;
  run.spec.schedule.learning_rate = 5e-3;
  run.spec.optimizer.muon_momentum = 0.5;
  run.spec.optimizer.muon_rate = MuonRate::kOriginal;
  const RecordingObserver seen = run.run();
  EXPECT_EQ(seen.differences,
            "max_steps 6 -> 8, learning_rate 0.01 -> 0.005, muon_momentum 0.95 -> 0.5, muon_adjust_lr_fn "
            "\"match_rms_adamw\" -> \"original\"");
  EXPECT_EQ(seen.steps.size(), 2u);
  EXPECT_EQ(read_json(run.output() / "trainer_state.json").at("global_step"), 8);
}

TEST(Resume, DamagedCheckpointGivesWayToTheOneBefore) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.run();
    SavingRun resumed = run;
    resumed.interrupt_at(4, "resumed");
    damage(resumed.output() / "checkpoint-4");
    resumed.spec.resume = parse_resume("auto");
    const RecordingObserver seen = resumed.run();
    EXPECT_EQ(seen.resumed_step, 3);
    EXPECT_EQ(seen.steps.size(), 3u);
    EXPECT_TRUE(fs::exists(resumed.output() / "previous-1/checkpoint-4"));
    expect_same_run(resumed.output(), run.output());
  }
}

TEST(Resume, DamagedLogOfACheckpointGivesWayToTheOneBefore) {
  SavingRun run;
  run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(4, "resumed");
  const fs::path log = resumed.output() / "checkpoint-4/trainer_state.json";
  std::string text = read_text_file(log);
  text[text.find("\"loss\": ") + 8] ^= 1;  // another digit
  std::ofstream(log, std::ios::binary) << text;
  resumed.spec.resume = parse_resume("auto");
  EXPECT_EQ(resumed.run().resumed_step, 3);
  expect_same_run(resumed.output(), run.output());
}

TEST(Resume, AutoDoesNotStartAfreshBesideCheckpointsThatCannotBeUsed) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.run();
    run.interrupt_at(2, "resumed");
    for (const char* name : {"checkpoint-1", "checkpoint-2"}) {
      fs::resize_file(run.output() / name / "model.safetensors", 100);
    }
    run.spec.resume = parse_resume("auto");
    expect_error(ExitCode::kBadData,
                 {"resume_from_checkpoint auto", run.output().string(), "none that can be used"},
                 [&] { run.run(); });
    EXPECT_FALSE(fs::exists(run.output() / "previous-1"));
    // An agent's restart of a run meant to start from scratch has nothing to lose there.
    run.spec.resume.by_agent = true;
    run.spec.launch.is_restart = true;
    run.spec.launch.id = "this";
    EXPECT_EQ(run.run().steps.size(), 6u);
    EXPECT_TRUE(fs::exists(run.output() / "previous-1/checkpoint-2"));
  }
}

TEST(Resume, AutoStartsAfreshBesideCheckpointsOfAnotherProgram) {
  SavingRun run;
  run.spec.resume = parse_resume("auto");
  create_folder(run.output() / "checkpoint-9");
  write_text_file(run.output() / "checkpoint-9/optimizer.pt", "PK");
  EXPECT_EQ(run.run().steps.size(), 6u);
  EXPECT_TRUE(fs::exists(run.output() / "previous-1/checkpoint-9/optimizer.pt"));
}

TEST(Resume, RestartOfAFreshRunTakesNothingOfAFormerOne) {
  SavingRun run;
  run.spec.launch.id = "former";
  run.run();
  // The first start of this launch ended before it could move the earlier run aside.
  SavingRun again = run;
  again.spec.launch.id = "this";
  again.spec.resume = parse_resume("auto");
  again.spec.resume.by_agent = true;
  again.spec.launch.is_restart = true;
  EXPECT_EQ(again.run().steps.size(), 6u);
  EXPECT_TRUE(fs::exists(run.output() / "previous-1/checkpoint-6"));
  fs::remove_all(run.output() / "checkpoint-6");
  EXPECT_EQ(again.run().resumed_step, 5);
}

TEST(Resume, FoldersThatAreNoCheckpointAreToldApart) {
  SavingRun run;
  run.run();
  const fs::path output = run.output();
  const auto refuse = [&](const fs::path& folder, const std::vector<std::string>& parts) {
    run.spec.resume = parse_resume(folder);
    expect_error(ExitCode::kNoInput, parts, [&] { run.run(); });
  };
  refuse(output / "checkpoint-60", {"no such checkpoint", (output / "checkpoint-6").string()});
  refuse(output, {"holds checkpoints", (output / "checkpoint-6").string()});
  fs::remove_all(output / "checkpoint-6/tessera");
  refuse(output / "checkpoint-6",
         {"not written by this program", "--model " + (output / "checkpoint-6").string()});
  fs::remove(output / "checkpoint-5/tessera/manifest.json");
  refuse(output / "checkpoint-5", {"manifest.json: not found", "incomplete"});
  refuse(run.folder().path() / "nowhere/checkpoint-1", {"no such checkpoint"});
}

TEST(Resume, DamagedCheckpointAskedForByNameIsAnError) {
  SavingRun run;
  run.run();
  damage(run.output() / "checkpoint-4");
  run.spec.resume = parse_resume(run.output() / "checkpoint-4");
  expect_error(ExitCode::kBadData, {"checkpoint-4"}, [&] { run.run(); });
}

TEST(Resume, CheckpointsOfBeforeCountForTheLimit) {
  SavingRun run;
  run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(3, "resumed");
  resumed.spec.resume = parse_resume("true");
  resumed.spec.saving.total_limit = 2;
  resumed.run();
  for (int64_t step = 1; step <= 6; ++step) {
    EXPECT_EQ(fs::exists(resumed.output() / fmt::format("checkpoint-{}", step)), step >= 5) << step;
  }
}

}  // namespace
}  // namespace tessera
