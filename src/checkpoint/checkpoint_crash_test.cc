// Interrupts a checkpoint at every one of its system calls: afterwards either the old or the new checkpoint
// is found, complete.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "base/error.h"
#include "checkpoint/checkpoint_files.h"
#include "disk_replay.h"
#include "disk_shim.h"
#include "model/families/families.h"
#include "support/checkpoint_test_support.h"
#include "support/draws.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 17;
// Random choices of what is lost, per interruption.
constexpr int kRandomLosses = 3;
constexpr int64_t kSectorBytes = 512;

class CheckpointCrash : public testing::Test {
 protected:
  TestCheckpoint checkpoint(const fs::path& output_dir, int64_t step) const {
    TestCheckpoint result;
    result.output_dir = output_dir;
    result.step = step;
    result.world_size = 2;
    result.export_options.max_shard_bytes = 400;  // several shards
    return result;
  }
  void write_old(const TestFolder& folder) const {
    write_checkpoint(checkpoint(folder.path(), 10), config_, layout_, old_);
  }

  // The newest checkpoint on this disk. Broken: something with a checkpoint's name is incomplete, or `latest`
  // does not name one.
  enum class Found { kOld, kNew, kNeither, kBroken };
  Found look_at(const fs::path& folder) const {
    for (const CheckpointEntry& entry : list_checkpoints(folder)) {
      if (!entry.problem.empty()) return Found::kBroken;
    }
    std::ifstream latest(folder / "latest");
    std::string name;
    std::getline(latest, name);
    if (name.empty() || !fs::exists(folder / name / kManifestName)) return Found::kBroken;
    const auto reader = open_newest_checkpoint(folder);
    if (!reader) return Found::kNeither;
    try {
      reader->verify(pool_);
    } catch (const Error&) {
      return Found::kBroken;
    }
    TestState state = zero_state(layout_);
    reader->load(layout_, AdamW::kStateTensors, everything(layout_), state.sink(), pool_);
    return state == old_ ? Found::kOld : state == new_ ? Found::kNew : Found::kNeither;
  }

  Found look_at(const DiskRecording& recording, const std::vector<DiskOp>& ops,
                std::span<const Fate> fates) const {
    const fs::path disk = scratch_ / "disk";
    fs::remove_all(disk);
    fs::create_directory(disk);
    make_disk(recording.before(), ops, fates, disk);
    return look_at(disk);
  }

  // Simulates a power loss after the first `cut` changes: `fate_of` decides the fate of changes that are not
  // durable.
  Found look_at_loss(const DiskRecording& recording, const std::vector<DiskOp>& ops, size_t cut,
                     const std::function<Fate(const DiskOp&)>& fate_of) const {
    const std::vector<bool> durable = durable_ops(ops, cut);
    std::vector<Fate> fates(cut);
    for (size_t i = 0; i < cut; ++i) fates[i] = durable[i] ? Fate() : fate_of(ops[i]);
    return look_at(recording, ops, fates);
  }

  // Interrupts the recorded calls everywhere, with every kind of loss.
  void cut_everywhere(const DiskRecording& recording);

  const ModelConfig config_ = tiny_checkpoint_config();
  const ParameterLayout layout_ = parameter_layout(config_);
  const TestState old_ = random_state(layout_, DType::kBF16, 1);
  const TestState new_ = random_state(layout_, DType::kBF16, 2);
  const TestFolder scratch_{memory_folder()};
  mutable ThreadPool pool_{1};
};

// The surviving part of a change that is not durable: a write may end at any sector.
Fate random_fate(const DiskOp& op, std::minstd_rand& random) {
  const auto choice = random() % 3;
  if (choice == 0) return {};
  if (choice == 1 || op.kind != DiskOp::Kind::kWrite) return {.is_done = choice != 1};
  const int64_t num_sectors = std::ssize(op.data) / kSectorBytes + 1;
  return {.bytes = static_cast<int64_t>(random()) % num_sectors * kSectorBytes};
}

bool is_data(const DiskOp& op) {
  return op.kind == DiskOp::Kind::kWrite || op.kind == DiskOp::Kind::kTruncate;
}

// Everything that is not durable is lost, or the file system writes names before data, or data before names.
Fate nothing(const DiskOp&) { return {.is_done = false}; }
Fate names_only(const DiskOp& op) { return {.is_done = !is_data(op)}; }
Fate data_only(const DiskOp& op) { return {.is_done = is_data(op)}; }

void CheckpointCrash::cut_everywhere(const DiskRecording& recording) {
  const std::vector<DiskOp>& ops = recording.ops();
  std::minstd_rand random(kSeed);
  const auto is_whole = [](Found found) { return found == Found::kOld || found == Found::kNew; };
  bool was_new = false;
  for (size_t cut = 0; cut <= ops.size(); ++cut) {
    if (cut % sanitizer_stride() != 0 && cut != ops.size()) continue;
    SCOPED_TRACE(fmt::format("seed {}, cut {} of {}: before {}", kSeed, cut, ops.size(),
                             cut < ops.size() ? ops[cut].to_string() : "nothing"));
    // The process is killed: everything done so far is there, and perhaps part of one more write.
    std::vector<Fate> fates(cut);
    const Found killed = look_at(recording, ops, fates);
    ASSERT_TRUE(is_whole(killed));
    ASSERT_TRUE(!was_new || killed == Found::kNew);
    was_new = killed == Found::kNew;
    if (cut < ops.size() && ops[cut].kind == DiskOp::Kind::kWrite) {
      fates.push_back({.bytes = std::ssize(ops[cut].data) / 2});
      ASSERT_EQ(look_at(recording, ops, fates), killed);
    }
    // Power is lost: only synced data is certain to survive.
    for (const auto fate_of : {nothing, names_only, data_only}) {
      const Found found = look_at_loss(recording, ops, cut, fate_of);
      ASSERT_TRUE(is_whole(found));
      ASSERT_TRUE(cut < ops.size() || found == Found::kNew) << "complete checkpoints survive a loss of power";
    }
    for (int i = 0; i < kRandomLosses; ++i) {
      ASSERT_TRUE(is_whole(
          look_at_loss(recording, ops, cut, [&](const DiskOp& op) { return random_fate(op, random); })));
    }
  }
  EXPECT_TRUE(was_new);
}

TEST_F(CheckpointCrash, LeavesTheOldOrTheNewOneAtEveryCut) {
  const TestFolder folder;
  write_old(folder);
  const DiskRecording recording(folder.path());
  write_checkpoint(checkpoint(folder.path(), 20), config_, layout_, new_);
  EXPECT_GT(recording.ops().size(), 100u);
  cut_everywhere(recording);
}

TEST_F(CheckpointCrash, LeavesTheOldOrTheNewOneOfTheSameName) {
  const TestFolder folder;
  write_old(folder);
  const DiskRecording recording(folder.path());
  write_checkpoint(checkpoint(folder.path(), 10), config_, layout_, new_);
  cut_everywhere(recording);
}

// Leftovers of a killed run are removed first.
TEST_F(CheckpointCrash, LeavesTheOldOrTheNewOneAfterAnUnfinishedOne) {
  const TestFolder folder;
  write_old(folder);
  fs::copy(folder / "checkpoint-10", folder / ".unfinished-checkpoint-20", fs::copy_options::recursive);
  const DiskRecording recording(folder.path());
  write_checkpoint(checkpoint(folder.path(), 20), config_, layout_, new_);
  EXPECT_TRUE(std::any_of(recording.ops().begin(), recording.ops().end(),
                          [](const DiskOp& op) { return op.kind == DiskOp::Kind::kRemove; }));
  cut_everywhere(recording);
}

// Every single sync is needed, except for files that another rank syncs later and for output_dir, which is
// synced for both the checkpoint and `latest`. So this test would notice a missing one.
TEST_F(CheckpointCrash, IsFoundOutWhereASyncIsMissing) {
  const TestFolder folder;
  write_old(folder);
  const DiskRecording recording(folder.path());
  write_checkpoint(checkpoint(folder.path(), 20), config_, layout_, new_);
  std::map<int64_t, std::string> names;
  for (const DiskOp& op : recording.ops()) {
    if (op.kind == DiskOp::Kind::kCreate || op.kind == DiskOp::Kind::kMakeDir) names[op.node] = op.name;
  }
  int num_needed = 0;
  for (size_t i = 0; i < recording.ops().size(); ++i) {
    if (recording.ops()[i].kind != DiskOp::Kind::kSync) continue;
    std::vector<DiskOp> ops = recording.ops();
    const int64_t node = ops[i].node;
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(i));
    const auto survives = [&](Fate (*fate_of)(const DiskOp&)) {
      return look_at_loss(recording, ops, ops.size(), fate_of) == Found::kNew;
    };
    if (!survives(nothing) || !survives(names_only) || !survives(data_only)) {
      ++num_needed;
    } else {
      EXPECT_TRUE(node == 0 || names[node].starts_with("model-")) << names[node];
    }
  }
  // Manifest, two state files and indexes, four small files, two folders, `latest`.
  EXPECT_GE(num_needed, 12);
}

}  // namespace
}  // namespace tessera
