// Power loss while the state of a run is on a disk: the checkpoints are whole, whatever survives of the other
// files, and the run resumes with the same bits.
#include <gtest/gtest.h>

#include <random>

#include "disk_replay.h"
#include "disk_shim.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNumCuts = 12;
constexpr uint64_t kCrashSeed = 5;

SavingRun run_on_disk() {
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 4;
  SavingRun run({}, config);
  run.spec.precision.dtype = DType::kBF16;
  run.spec.placement.optimizer_device = run.spec.placement.param_device = OffloadDevice::kNvme;
  run.spec.placement.optimizer_in_backward = true;
  run.spec.placement.merge_micro_batches = AutoChoice::kAlways;
  run.spec.placement.gradient_checkpointing = true;
  run.spec.placement.checkpointing_mode = CheckpointingMode::kOffload;
  return run;
}

void set_output(SavingRun* run, const fs::path& folder) {
  run->spec.output_dir = folder / "out";
  run->spec.placement.offload_dir = folder / "out/offload";
}

TEST(OffloadCrash, ALossOfPowerAtAnyMomentLeavesARunThatResumes) {
  SavingRun run = run_on_disk();
  const fs::path disk = run.folder() / "disk", replayed = run.folder() / "replayed";
  fs::create_directory(disk);
  set_output(&run, disk);
  const DiskRecording recording(disk);
  run.run();
  const std::vector<DiskOp> ops = recording.ops();
  const auto expected = tensor_files(run.output() / "checkpoint-6");
  std::minstd_rand random(kCrashSeed);
  for (int64_t i = 0; i < kNumCuts; ++i) {
    const size_t cut = random() % ops.size();
    SCOPED_TRACE(fmt::format("cut {} of {}", cut, ops.size()));
    const std::vector<bool> durable = durable_ops(ops, cut);
    std::vector<Fate> fates(cut);
    for (size_t op = 0; op < cut; ++op) fates[op].is_done = durable[op] || random() % 2 == 0;
    fs::remove_all(replayed);
    fs::create_directory(replayed);
    make_disk(recording.before(), ops, fates, replayed);
    SavingRun resumed = run;
    set_output(&resumed, replayed);
    resumed.spec.resume = parse_resume("auto");
    resumed.run();
    EXPECT_TRUE(tensor_files(resumed.output() / "checkpoint-6") == expected);
    EXPECT_TRUE(fs::is_empty(resumed.spec.placement.offload_dir));
  }
}

}  // namespace
}  // namespace tessera
