// output_dir and power loss.
#include "train/output/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "disk_replay.h"
#include "disk_shim.h"
#include "expect_error.h"
#include "optim/adafactor.h"
#include "optim/elementwise.h"
#include "optim/muon.h"
#include "plan/disk_plan.h"
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

// Syncing takes long while a checkpoint is being written to disk.
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

TEST(OutputFolder, OfTheModelItselfIsRefusedUnderAnyPath) {
  namespace fs = std::filesystem;
  const TestFolder folder;
  for (const char* name :
       {"model", "out", "out/checkpoint-4", "out/.unfinished-model", "linked", "out/start"}) {
    fs::create_directories(folder / name);
    folder.write(std::string(name) + "/model.safetensors", "weights");
  }
  fs::create_directory_symlink(folder / "model", folder / "link");
  fs::remove(folder / "linked/model.safetensors");
  fs::create_symlink("../out/model.safetensors", folder / "linked/model.safetensors");
  const auto check = [&](const char* output, const char* model) {
    check_spares_model(folder / output, folder / model);
  };
  for (const auto& [output, model] :
       std::vector<std::pair<const char*, const char*>>{{"model", "model"},
                                                        {"model/", "model"},
                                                        {"model", "out/../model/."},
                                                        {"link", "model"},
                                                        {"model", "link"},
                                                        {"out", "out/checkpoint-4"},
                                                        {"out", "out/.unfinished-model"},
                                                        {"out", "linked"}}) {
    SCOPED_TRACE(testing::Message() << output << ", " << model);
    expect_error(ExitCode::kBadConfig, {"output_dir", (folder / output).native(), "choose another folder"},
                 [&, o = output, m = model] { check(o, m); });
  }
  check("out", "model");
  check("new", "model");
  check("model/tuned", "model");
  check("out", "out/start");
  check("out", "missing");
}

// A model of one matrix [10, 100].
ParameterLayout layout_of_matrix() {
  const ModelTensor matrix = {0, ParameterKind::kMatrix, {{"weight", {10, 100}}}, {}, nullptr};
  return ParameterLayout(std::span(&matrix, 1));
}

TEST(DiskPlan, CountsWhatIsThereAtTheSameTime) {
  const ParameterLayout layout = layout_of_matrix();
  const auto most = [&](int64_t num_saves, std::optional<int64_t> limit, int64_t num_present) {
    return plan_disk(layout, StoredParts(DType::kBF16, AdamW::kStateTensors), {num_saves, limit, num_present})
        .num_checkpoints;
  };
  EXPECT_EQ(most(7, {}, 0), 7);
  EXPECT_EQ(most(7, 2, 0), 3) << "the third is written before the first is deleted";
  EXPECT_EQ(most(2, 5, 0), 2);
  EXPECT_EQ(most(7, 2, 1), 2);
  EXPECT_EQ(most(7, 2, 9), 1) << "from an earlier start with a higher limit";
  EXPECT_EQ(most(0, 2, 1), 0);
  EXPECT_EQ(plan_disk(layout, StoredParts(DType::kBF16, AdamW::kStateTensors), {}).model_bytes, 2000);
  for (const auto& [dtype, bytes] :
       std::map<DType, int64_t>{{DType::kBF16, 12}, {DType::kF32, 12}, {DType::kF16, 14}}) {
    EXPECT_EQ(plan_disk(layout, StoredParts(dtype, AdamW::kStateTensors), {}).checkpoint_bytes, 1000 * bytes);
  }
  EXPECT_EQ(plan_disk(layout, StoredParts(DType::kBF16, Muon::kStateTensors), {}).checkpoint_bytes, 8 * 1000);
  EXPECT_EQ(plan_disk(layout, StoredParts(DType::kBF16, Adafactor::kStateTensors), {}).checkpoint_bytes,
            4 * 1000 + 4 * (10 + 100));
}

TEST(DiskPlan, ADiskThatIsTooSmallIsRefusedOrWarnedOf) {
  DiskPlan plan = {.model_bytes = 100, .checkpoint_bytes = 600, .num_checkpoints = 5, .free_bytes = 99};
  EXPECT_EQ(disk_refusal(plan, "out"),
            "output_dir out: not enough disk space for the finished model: 100 B needed, 99 B free; free "
            "some space or choose a folder on another disk");
  plan.free_bytes = 100;
  EXPECT_EQ(disk_refusal(plan, "out"), "");
  EXPECT_THAT(disk_warning(plan, "out"), testing::HasSubstr("free some space"));
  plan.free_bytes = 1999;
  EXPECT_EQ(
      disk_warning(plan, "out"),
      "output_dir out: not enough disk space for 5 checkpoints of 600 B and the model of 100 B: 3.03 KiB "
      "needed, 1.95 KiB free; checkpoints will fail once the disk is full; save_total_limit 2 would fit");
  plan.free_bytes = 3100;
  EXPECT_EQ(disk_warning(plan, "out"), "");
  EXPECT_EQ(disk_text(plan), "model 100 B, at most 5 checkpoints of 600 B; 3.03 KiB free");
}

// Before the model is written, the moments in offload_dir are given up.
TEST(DiskPlan, TheFinishedModelTakesTheRoomOfTheMoments) {
  DiskPlan plan = {.model_bytes = 100,
                   .free_bytes = 400,
                   .offload_bytes = 350,
                   .discarded_bytes = 60,
                   .offload_free_bytes = 400,
                   .offload_shares_disk = true};
  EXPECT_EQ(plan.bytes_left(), 110);
  EXPECT_EQ(offload_refusal(plan, "offload"), "");
  plan.offload_bytes = 361;
  EXPECT_THAT(offload_refusal(plan, "offload"),
              testing::HasSubstr("beside the finished model: 401 B needed, 400 B free"));
  plan.discarded_bytes = 200;
  EXPECT_EQ(offload_refusal(plan, "offload"), "")
      << "the state needs more than what is left of it and the model";
  plan.offload_bytes = 401;
  EXPECT_THAT(offload_refusal(plan, "offload"), testing::HasSubstr("keeps there: 401 B needed, 400 B free"));
  plan.offload_shares_disk = false;
  EXPECT_EQ(plan.bytes_left(), 400);
}

TEST(DiskPlan, LooksAtTheDiskThatTheFolderWillBeOn) {
  const TestFolder folder;
  EXPECT_GT(free_disk_bytes(folder / "not/yet/there"), 0);
  std::filesystem::create_directories(folder / "out/checkpoint-2");
  std::filesystem::create_directories(folder / "out/checkpoint-10");
  std::filesystem::create_directories(folder / "out/previous-1");
  EXPECT_EQ(num_checkpoints_in(folder / "out"), 2);
  EXPECT_EQ(num_checkpoints_in(folder / "nowhere"), 0);
}

}  // namespace
}  // namespace tessera
