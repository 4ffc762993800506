#include "io/absolute_path.h"

#include <gtest/gtest.h>

#include <string>
#include <system_error>

#include "expect_error.h"
#include "io/disk_space.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST(AbsolutePath, NamesACurrentFolderThatIsGone) {
  const fs::path before = fs::current_path();
  EXPECT_EQ(absolute_path("out"), before / "out");
  const TestFolder folder;
  fs::create_directory(folder / "gone");
  fs::current_path(folder / "gone");
  fs::remove(folder / "gone");
  EXPECT_EQ(absolute_path("/out"), "/out");
  expect_error(ExitCode::kNoInput, {"out: the current folder", "removed or replaced"},
               [] { absolute_path("out"); });
  const auto code = std::make_error_code(std::errc::permission_denied);
  EXPECT_EQ(error_from(fs::filesystem_error("what", "out", code)).code(), ExitCode::kNoInput);
  const Error elsewhere = error_from(fs::filesystem_error("what", "/out", code));
  EXPECT_EQ(elsewhere.code(), ExitCode::kIoError);
  EXPECT_EQ(std::string(elsewhere.what()), "/out: Permission denied");
  fs::current_path(before);
}

// /proc is one.
TEST(DiskSpace, OfAFileSystemThatTellsNoneIsUnknown) {
  std::error_code error;
  EXPECT_EQ(disk_space("/proc", error).available, static_cast<uintmax_t>(kUnknownSpaceBytes));
  EXPECT_LT(disk_space("/", error).available, static_cast<uintmax_t>(kUnknownSpaceBytes));
  EXPECT_FALSE(error);
  disk_space("/no/such/folder", error);
  EXPECT_TRUE(error);
}

}  // namespace
}  // namespace tessera
