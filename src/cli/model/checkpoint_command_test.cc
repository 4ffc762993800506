// `tessera checkpoint list` and `verify` on a disk that fails and beside a run that is still training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "checkpoint/checkpoint_files.h"
#include "cli/program/app.h"
#include "cli/terminal/terminal.h"
#include "expect_error.h"
#include "model/families/families.h"
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
      testing::internal::GetCapturedStdout();
      throw;
    }
    return testing::internal::GetCapturedStdout();
  }

  const TestFolder folder_;
  const std::string path_ = folder_.path().native();
};

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

}  // namespace
}  // namespace tessera
