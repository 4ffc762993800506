// Where ranks write, on a machine with other users.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "expect_error.h"
#include "io/file.h"
#include "launch/ranks/rank_files.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

LaunchPlan plan_with_files() {
  LaunchPlan plan;
  plan.run_id = "run";
  plan.outputs.resize(1);
  plan.outputs[0].teed.out = true;
  return plan;
}

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& folder) {
    if (const char* before = std::getenv("TMPDIR")) former_ = before;
    ::setenv("TMPDIR", folder.c_str(), 1);
  }
  ~TemporaryFolder() { former_ ? ::setenv("TMPDIR", former_->c_str(), 1) : ::unsetenv("TMPDIR"); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

 private:
  std::optional<std::string> former_;
};

TEST(LogFolder, SaysWhyThereIsNoneForTemporaryFiles) {
  const LaunchPlan plan = plan_with_files();
  const TemporaryFolder nowhere("/nowhere");
  expect_error(ExitCode::kIoError, {"TMPDIR", "No such file", "--log_dir"}, [&] { make_log_folder(plan); });
}

TEST(LogFolder, BelongsToTheUserAlone) {
  const LaunchPlan plan = plan_with_files();
  const TestFolder shared;
  const TemporaryFolder temporary(shared.path().native());
  const fs::path own = shared / fmt::format("tessera-logs-{}", ::geteuid());
  const auto mode_of = [](const fs::path& folder) { return fs::status(folder).permissions(); };
  for (const fs::path& folder : {make_log_folder(plan), make_log_folder(plan)}) {
    EXPECT_EQ(folder.parent_path(), own);
    EXPECT_EQ(mode_of(folder), fs::perms::owner_all);
  }
  EXPECT_EQ(mode_of(own), fs::perms::owner_all);
  fs::permissions(own, fs::perms::all);
  make_log_folder(plan);
  EXPECT_EQ(mode_of(own), fs::perms::owner_all);

  fs::remove_all(own);
  fs::create_directory(shared / "elsewhere");
  fs::create_directory_symlink(shared / "elsewhere", own);
  expect_error(ExitCode::kIoError, {own.native(), "--log_dir"}, [&] { make_log_folder(plan); });
  EXPECT_TRUE(fs::is_empty(shared / "elsewhere"));
  fs::remove(own);
  shared.write(own.filename().native(), "");
  expect_error(ExitCode::kIoError, {own.native(), "--log_dir"}, [&] { make_log_folder(plan); });
  fs::remove(own);
  fs::create_directory(own);
  if (::chown(own.c_str(), ::geteuid() + 1, ::getegid()) != 0) return;  // permitted to root alone
  expect_error(ExitCode::kIoError, {own.native(), "--log_dir"}, [&] { make_log_folder(plan); });
}

TEST(LogFolder, FilesAreCreatedAndLinksNotFollowed) {
  const TestFolder folder;
  const fs::path precious = folder.write("precious", "text");
  const RankFiles files(folder.path(), 0, 0);
  ASSERT_EQ(::close(files.open_log("stdout.log")), 0);
  fs::create_symlink(precious, folder / "attempt_0/0/stderr.log");
  for (const char* taken : {"stdout.log", "stderr.log"}) {
    expect_error(ExitCode::kIoError, {taken, "File exists"}, [&] { files.open_log(taken); });
  }
  EXPECT_EQ(read_text_file(precious), "text");
}

}  // namespace
}  // namespace tessera
