// Failing disks: the checkpoint fails with file and cause, older ones stay intact, and no rank hangs.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <set>

#include "checkpoint/checkpoint_files.h"
#include "disk_shim.h"
#include "expect_error.h"
#include "model/families/families.h"
#include "support/checkpoint_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class CheckpointFault : public testing::Test {
 protected:
  TestCheckpoint checkpoint(const fs::path& output_dir, int64_t step) const {
    TestCheckpoint result;
    result.output_dir = output_dir;
    result.step = step;
    result.world_size = 2;
    return result;
  }
  void write(const fs::path& output_dir, int64_t step, const TestState& state) const {
    write_checkpoint(checkpoint(output_dir, step), config_, layout_, state);
  }
  TestState load(const CheckpointReader& reader) const { return load_checkpoint(reader, layout_); }
  bool has_unfinished(const fs::path& folder) const {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename().native().starts_with(".unfinished")) return true;
    }
    return false;
  }

  const ModelConfig config_ = tiny_checkpoint_config();
  const ParameterLayout layout_ = parameter_layout(config_);
  const TestState old_ = random_state(layout_, DType::kBF16, 1);
  const TestState new_ = random_state(layout_, DType::kBF16, 2);
};

int error_for(std::string_view call) {
  if (call == "open" || call == "mkdir" || call == "ftruncate" || call == "pwrite" || call == "write") {
    return ENOSPC;
  }
  return call == "rename" ? EROFS : EIO;
}

TEST_F(CheckpointFault, EveryCallThatFailsFailsTheCheckpointAndNothingElse) {
  // Calls are counted from the start of each attempt; two ranks make them in any order.
  for (int failing = 0;; ++failing) {
    const TestFolder folder(memory_folder());
    write(folder.path(), 10, old_);
    int num_calls = 0;
    std::optional<std::string> failed_call, failed_path;
    std::set<std::pair<int, std::string>> failed_syncs;
    bool synced_again = false;
    std::string message;
    {
      const DiskFaults faults(folder.path(), [&](const DiskCall& call) -> DiskFault {
        if (call.name == "unlink") return {};  // only for cleanup
        if (call.name == "fsync" && failed_syncs.contains({call.fd, call.path})) synced_again = true;
        if (call.name == "close") failed_syncs.erase({call.fd, call.path});
        if (num_calls++ != failing) return {};
        failed_call = call.name;
        failed_path = call.path;
        if (call.name == "fsync") failed_syncs.insert({call.fd, call.path});
        return {.error = error_for(call.name)};
      });
      try {
        write(folder.path(), 20, new_);
      } catch (const Error& error) {
        message = error.what();
        EXPECT_EQ(error.code(), ExitCode::kIoError) << message;
      }
    }
    if (!failed_call) {
      EXPECT_EQ(message, "");
      EXPECT_GT(failing, 100);
      break;
    }
    SCOPED_TRACE(fmt::format("call {}: {} of {}: '{}'", failing, *failed_call, *failed_path, message));
    EXPECT_FALSE(synced_again);
    EXPECT_FALSE(has_unfinished(folder.path()));
    EXPECT_TRUE(load(CheckpointReader::open(folder / "checkpoint-10")) == old_);
    const bool is_there = fs::exists(folder / "checkpoint-20");
    const auto newest = open_newest_checkpoint(folder.path());
    ASSERT_TRUE(newest.has_value());
    EXPECT_TRUE(load(*newest) == (is_there ? new_ : old_));
    if (is_there && message.empty()) {
      // Only a warning, since the checkpoint exists.
      EXPECT_TRUE(failed_path->find("latest") != std::string::npos ||
                  read_text_file(folder / "latest") == "checkpoint-20\n");
    } else {
      EXPECT_NE(message.find(fs::path(*failed_path).filename().native()), std::string::npos);
      EXPECT_NE(message.find(std::strerror(error_for(*failed_call))), std::string::npos);
    }
  }
}

TEST_F(CheckpointFault, InterruptedAndShortWritesAreWritesAllTheSame) {
  const TestFolder folder;
  int num_calls = 0;
  {
    const DiskFaults faults(folder.path(), [&](const DiskCall& call) -> DiskFault {
      if (call.name != "pwrite" && call.name != "write") return {};
      ++num_calls;
      return num_calls % 3 == 0 ? DiskFault{.error = EINTR} : DiskFault{.max_bytes = 1 + num_calls % 100};
    });
    write(folder.path(), 10, new_);
  }
  EXPECT_GT(num_calls, 300);
  const CheckpointReader reader = CheckpointReader::open(folder / "checkpoint-10");
  ThreadPool pool(1);
  reader.verify(pool);
  EXPECT_TRUE(load(reader) == new_);
}

TEST_F(CheckpointFault, AWriteThatFailedHoldsNobodyUp) {
  const TestFolder folder;
  const DiskFaults faults(folder.path(), [&](const DiskCall& call) -> DiskFault {
    return {.error = call.name == "pwrite" && call.path.find("state-") != std::string::npos ? EIO : 0};
  });
  TestCheckpoint test = checkpoint(folder.path(), 10);
  test.world_size = 1;
  ThreadPool pool(1);
  for (const int64_t snapshot_bytes : {0, 1 << 20}) {
    create_checkpoint(test.plan(config_, layout_));
    CheckpointWriter writer(test.plan(config_, layout_), everything(layout_), new_.source(),
                            {.snapshot_bytes = snapshot_bytes}, pool);
    writer.before_change({0, layout_.num_elements()});
    expect_error(ExitCode::kIoError, {state_file_name(0, 1), "Input/output error"}, [&] { writer.wait(); });
    EXPECT_TRUE(writer.finished());
    writer.before_change({0, layout_.num_elements()});
  }
}

// Deleting output_dir while a run writes to it costs the run a checkpoint, but does not end it.
TEST_F(CheckpointFault, AFolderRemovedOrDamagedBeforeTheCommitIsAnIoError) {
  const TestFolder folder;
  TestCheckpoint test = checkpoint(folder.path(), 10);
  test.world_size = 1;
  const CheckpointPlan plan = test.plan(config_, layout_);
  ThreadPool pool(1);
  const auto begin = [&] {
    create_checkpoint(plan);
    CheckpointWriter(plan, everything(layout_), new_.source(), {}, pool).wait();
  };
  const auto expect_failed_commit = [&] {
    expect_error(ExitCode::kIoError, {state_index_name(0, 1)},
                 [&] { commit_checkpoint(plan, test_record(test.step)); });
    EXPECT_FALSE(fs::exists(plan.folder));
  };
  begin();
  fs::remove_all(plan.unfinished_folder());
  expect_failed_commit();
  begin();
  fs::resize_file(plan.unfinished_folder() / state_index_name(0, 1), 10);
  expect_failed_commit();
}

// A small, separate file system.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) {
    is_mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (is_mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool is_mounted() const { return is_mounted_; }
  void make_read_only() const {
    ASSERT_EQ(::mount(nullptr, folder_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  }
  const TestFolder& folder() const { return folder_; }

 private:
  TestFolder folder_;
  bool is_mounted_ = false;
};

TEST_F(CheckpointFault, AFullDiskLosesTheNewOneOnly) {
  const SmallDisk disk("size=200k");
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting a file system is not permitted here";
  const fs::path& folder = disk.folder().path();
  write(folder, 10, old_);
  int64_t step = 11;
  // Write as many as fit; the next one fails.
  std::string message;
  for (; message.empty() && step < 100; ++step) {
    try {
      write(folder, step, new_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kIoError);
      message = error.what();
    }
  }
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
  EXPECT_FALSE(has_unfinished(folder));
  for (const CheckpointEntry& entry : list_checkpoints(folder)) EXPECT_EQ(entry.problem, "");
  EXPECT_TRUE(load(CheckpointReader::open(folder / "checkpoint-10")) == old_);
  fs::remove_all(folder / "checkpoint-11");
  write(folder, step, new_);
  EXPECT_TRUE(load(CheckpointReader::open(folder / checkpoint_name(step))) == new_);
}

TEST_F(CheckpointFault, AReadOnlyDiskIsNamed) {
  const SmallDisk disk("size=200k");
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting a file system is not permitted here";
  const fs::path& folder = disk.folder().path();
  write(folder, 10, old_);
  disk.make_read_only();
  expect_error(ExitCode::kIoError, {folder.native(), "Read-only file system"},
               [&] { write(folder, 20, new_); });
  EXPECT_TRUE(load(*open_newest_checkpoint(folder)) == old_);
}

TEST_F(CheckpointFault, ALimitOfTheFileSizeIsNamed) {
  const TestFolder folder;
  write(folder.path(), 10, old_);
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {2000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Error error = error_of([&] { write(folder.path(), 20, new_); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ExitCode::kIoError);
  EXPECT_NE(std::string(error.what()).find("File too large"), std::string::npos) << error.what();
  EXPECT_TRUE(load(*open_newest_checkpoint(folder.path())) == old_);
}

}  // namespace
}  // namespace tessera
