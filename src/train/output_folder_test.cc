// output_dir and a loss of power.
#include "train/output_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "disk_replay.h"
#include "disk_shim.h"
#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

TEST(OutputFolder, NamesOfNewFoldersSurviveALossOfPower) {
  const TestFolder folder;
  const DiskRecording recording(folder.path());
  const OutputFolder output(folder / "runs/today/out/");
  const std::vector<DiskOp>& ops = recording.ops();
  const std::vector<bool> durable = durable_ops(ops, ops.size());
  int num_folders = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind != DiskOp::Kind::kMakeDir) continue;
    ++num_folders;
    EXPECT_TRUE(durable[i]) << ops[i].to_string();
  }
  EXPECT_EQ(num_folders, 3);
}

// Syncing takes long while a checkpoint is on its way to the disk.
TEST(OutputFolder, AFolderThatIsThereIsNotSynced) {
  const TestFolder folder;
  const DiskRecording recording(folder.path());
  const OutputFolder output(folder.path());
  EXPECT_TRUE(recording.ops().empty());
}

TEST(OutputFolder, ACheckpointIsRefused) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "out/checkpoint-2/tessera");
  folder.write("out/checkpoint-2/tessera/manifest.json", "{}");
  check_can_write_in(folder / "out");
  expect_error(ExitCode::kBadConfig,
               {(folder / "out/checkpoint-2").native(), "itself a checkpoint", "--resume_from_checkpoint"},
               [&] { check_can_write_in(folder / "out/checkpoint-2"); });
}

}  // namespace
}  // namespace tessera
