// tessera checkpoint list and verify, on folders as a run leaves them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "checkpoint/checkpoint_files.h"
#include "cli/app.h"
#include "cli/terminal/terminal.h"
#include "expect_error.h"
#include "model/families.h"
#include "read_faults.h"
#include "support/checkpoint_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class CheckpointCommand : public testing::Test {
 protected:
  CheckpointCommand() {
    const ModelConfig config = checkpoint_test_config();
    const ParameterLayout layout = parameter_layout(config);
    const TestState state = zero_state(layout);
    for (const int64_t step : {8, 16}) {
      TestCheckpoint checkpoint;
      checkpoint.output_dir = folder_.path();
      checkpoint.step = step;
      checkpoint.world_size = 2;
      write_checkpoint(checkpoint, config, layout, state);
    }
  }

  std::string run(std::vector<std::string> arguments) const {
    testing::internal::CaptureStdout();
    try {
      run_program(arguments);
    } catch (...) {
      flush_output();
      out_ = testing::internal::GetCapturedStdout();
      throw;
    }
    return testing::internal::GetCapturedStdout();
  }

  void flip_a_byte(const fs::path& path, int64_t offset) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get());
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
  }

  const TestFolder folder_;
  const std::string path_ = folder_.path().native();
  mutable std::string out_;  // of a failed run
};

void expect_80_columns(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // A path cannot be wrapped.
    EXPECT_TRUE(line.size() <= 80u || line.find('/') != std::string::npos) << line;
  }
}

TEST_F(CheckpointCommand, ListShowsEachWithItsProblem) {
  const std::string out = run({"checkpoint", "list", path_});
  EXPECT_THAT(out,
              testing::MatchesRegex("checkpoint +ranks +size +model\ncheckpoint-8 +2 +[0-9.]+ MiB +BF16\n"
                                    "checkpoint-16 +2 +[0-9.]+ MiB +BF16\n"));
  expect_80_columns(out);
  fs::remove(folder_ / "checkpoint-16/config.json");
  const std::string with_problem = run({"checkpoint", "list", path_});
  EXPECT_THAT(with_problem, HasSubstr("checkpoint-16                cannot be used:\n"));
  EXPECT_THAT(with_problem, HasSubstr("config.json"));
  expect_80_columns(with_problem);
}

TEST_F(CheckpointCommand, ListAsJsonHasALinePerCheckpoint) {
  fs::remove(folder_ / "checkpoint-8/config.json");
  std::istringstream lines(run({"checkpoint", "list", path_, "--json"}));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["step"], 8);
  EXPECT_THAT(first["problem"].get<std::string>(), HasSubstr("config.json"));
  ASSERT_TRUE(std::getline(lines, line));
  const auto second = nlohmann::json::parse(line);
  EXPECT_EQ(second["folder"], path_ + "/checkpoint-16");
  EXPECT_EQ(second["world_size"], 2);
  EXPECT_EQ(second["model_dtype"], "BF16");
  EXPECT_GT(second["bytes"].get<int64_t>(), 1'000'000);
  EXPECT_TRUE(second["problem"].is_null());
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(CheckpointCommand, VerifyReadsEveryByteOfOneOrAll) {
  const std::string out = run({"checkpoint", "verify", path_});
  EXPECT_THAT(out, testing::MatchesRegex("checkpoint-8 +intact: [0-9.]+ MiB, [0-9.]+ GB/s\n"
                                         "checkpoint-16 +intact: [0-9.]+ MiB, [0-9.]+ GB/s\n"));
  const fs::path damaged = folder_ / "checkpoint-8" / state_file_name(1, 2);
  flip_a_byte(damaged, static_cast<int64_t>(fs::file_size(damaged)) - 1);
  EXPECT_THAT(run({"checkpoint", "list", path_}), Not(HasSubstr("cannot")));  // sizes and headers are correct
  expect_error(ExitCode::kBadData,
               {"1 of 2 checkpoints cannot be used", damaged.native(), "expected checksum"}, [&] {
                 run({"checkpoint", "verify", path_});
               });
  EXPECT_THAT(out_, HasSubstr("checkpoint-8                 cannot be used:\n"));
  EXPECT_THAT(out_, HasSubstr("checkpoint-16                intact"));
  expect_80_columns(out_);
  expect_error(ExitCode::kBadData, {damaged.native()}, [&] {
    run({"checkpoint", "verify", path_ + "/checkpoint-8"});
  });
  EXPECT_THAT(run({"checkpoint", "verify", path_ + "/checkpoint-16/"}), HasSubstr("checkpoint-16 "));
}

TEST_F(CheckpointCommand, VerifyAsJsonHasALinePerCheckpoint) {
  const fs::path damaged = folder_ / "checkpoint-8" / state_file_name(1, 2);
  flip_a_byte(damaged, static_cast<int64_t>(fs::file_size(damaged)) - 1);
  expect_error(ExitCode::kBadData, {"1 of 2 checkpoints cannot be used"}, [&] {
    run({"checkpoint", "verify", path_, "--json"});
  });
  std::istringstream lines(out_);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["step"], 8);
  EXPECT_EQ(first["intact"], false);
  EXPECT_THAT(first["problem"].get<std::string>(), HasSubstr("expected checksum"));
  ASSERT_TRUE(std::getline(lines, line));
  const auto second = nlohmann::json::parse(line);
  EXPECT_EQ(second["folder"], path_ + "/checkpoint-16");
  EXPECT_EQ(second["intact"], true);
  EXPECT_GT(second["bytes_read"].get<int64_t>(), 1'000'000);
  EXPECT_TRUE(second["problem"].is_null());
  EXPECT_FALSE(std::getline(lines, line));
}

// Not every problem is the checkpoint's: a disk error or a missing permission may be temporary.
TEST_F(CheckpointCommand, VerifyTellsADamagedCheckpointFromADiskThatFails) {
  const ReadFaults faults(folder_ / "checkpoint-8" / state_file_name(0, 2), 2);
  expect_error(ExitCode::kIoError, {"1 of 2", state_file_name(0, 2), "Input/output error"}, [&] {
    run({"checkpoint", "verify", path_});
  });
}

// A run with save_total_limit renames the oldest ones before it deletes them.
TEST_F(CheckpointCommand, WhatARunDeletesMeanwhileIsNoProblem) {
  const fs::path checkpoint = folder_ / "checkpoint-16", condemned = folder_ / ".unfinished-to-delete";
  for (const char* command : {"list", "verify"}) {
    for (int i = 0; i < 40; ++i) {
      std::thread run_going([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(50 * i));
        fs::rename(checkpoint, condemned);
      });
      std::string out;
      EXPECT_NO_THROW(out = run({"checkpoint", command, path_}));
      run_going.join();
      EXPECT_THAT(out, Not(HasSubstr("cannot be used")));
      EXPECT_THAT(out, HasSubstr("checkpoint-8 "));
      fs::rename(condemned, checkpoint);
    }
  }
}

TEST_F(CheckpointCommand, NoCheckpointIsNoInput) {
  const TestFolder empty;
  for (const char* command : {"list", "verify"}) {
    expect_error(ExitCode::kNoInput, {empty.path().native(), "no checkpoints"}, [&] {
      run({"checkpoint", command, empty.path().native()});
    });
    expect_error(ExitCode::kNoInput, {path_ + "/nothing", "no such folder"}, [&] {
      run({"checkpoint", command, path_ + "/nothing"});
    });
  }
}

}  // namespace
}  // namespace tessera
