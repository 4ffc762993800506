#include "io/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <optional>
#include <set>
#include <thread>

#include "expect_error.h"
#include "support/run_in_child.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The exit code of a child that may not mount a file system.
constexpr int kSkipped = 77;

TEST(InputFile, ReadsAnyPart) {
  const TestFolder folder;
  const InputFile file = InputFile::open(folder.write("ü file.bin", "0123456789"));
  EXPECT_EQ(file.size_bytes(), 10);
  std::array<char, 4> part = {};
  file.read_at(3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(std::string(part.data(), part.size()), "3456");
  file.read_at(10, {});
}

TEST(InputFile, RefusesWhatIsNoFile) {
  const TestFolder folder;
  expect_error(ExitCode::kNoInput, {(folder / "absent").native(), "No such file"},
               [&] { InputFile::open(folder / "absent"); });
  expect_error(ExitCode::kNoInput, {folder.path().native(), "is a folder, expected a file"},
               [&] { InputFile::open(folder.path()); });
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ExitCode::kNoInput, {"pipe", "not a regular file"}, [&] { InputFile::open(folder / "pipe"); });
  expect_error(ExitCode::kNoInput, {"/dev/null", "not a regular file"}, [] { InputFile::open("/dev/null"); });
}

TEST(InputFile, TellsTruncationAndRewritingWhileOpen) {
  const TestFolder folder;
  const fs::path path = folder.write("data", std::string(100, 'a'));
  const InputFile file = InputFile::open(path);
  std::array<std::byte, 50> part = {};
  expect_error(ExitCode::kBadData, {path.native(), "ends early", "expected 50 bytes at offset 51", "at 100"},
               [&] { file.read_at(51, part); });
  file.check_unchanged();
  fs::resize_file(path, 60);
  expect_error(ExitCode::kBadData, {path.native(), "ends early", "100 bytes when opened"},
               [&] { file.read_at(20, part); });
  expect_error(ExitCode::kBadData, {path.native(), "changed while", "100 bytes when opened, now 60"},
               [&] { file.check_unchanged(); });
  const InputFile again = InputFile::open(path);
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  expect_error(ExitCode::kBadData, {path.native(), "changed while", "rewritten in place"},
               [&] { again.check_unchanged(); });
}

TEST(InputFile, NamesTheLimitOfOpenFiles) {
  const TestFolder folder;
  const fs::path path = folder.write("data", "x");
  EXPECT_EQ(run_in_child([&] {
              // UBSan opens a pipe for the first error, which the limit would not allow.
              expect_error(ExitCode::kNoInput, {path.native()}, [&] { InputFile::open(path / "below"); });
              const rlimit none = {3, 3};
              EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
              expect_error(ExitCode::kIoError, {path.native(), "too many open files", "ulimit -n"},
                           [&] { InputFile::open(path); });
              return 0;
            }),
            0);
}

TEST(ReadTextFile, RefusesFilesAboveTheLimit) {
  const TestFolder folder;
  const fs::path path = folder.write("text", "12345");
  EXPECT_EQ(read_text_file(path, 5), "12345");
  expect_error(ExitCode::kBadData, {path.native(), "expected at most 4 B, found 5 B"},
               [&] { read_text_file(path, 4); });
  EXPECT_EQ(read_text_file(folder.write("empty", "")), "");
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const TestFolder folder;
  const fs::path path = folder.write("file", "old");
  {
    AtomicFile file(path);
    file.write(std::string_view("new"));
    EXPECT_EQ(read_text_file(path), "old");
  }
  EXPECT_EQ(folder.names(), std::set<std::string>{"file"}) << "an abandoned file must leave nothing";
  {
    AtomicFile file(path);
    file.write(std::string_view("new"));
    file.write(std::string_view("er"));
    file.commit();
    expect_error(ExitCode::kInternal, {path.native()}, [&] { file.write(std::string_view("x")); });
  }
  EXPECT_EQ(read_text_file(path), "newer");
  EXPECT_EQ(folder.names(), std::set<std::string>{"file"});
}

TEST(AtomicFile, ReplacesALinkAndNotWhatItPointsAt) {
  const TestFolder folder;
  const fs::path target = folder.write("blob", "shared");
  fs::create_symlink(target, folder / "link");
  write_text_file(folder / "link", "mine");
  EXPECT_EQ(read_text_file(target), "shared");
  EXPECT_FALSE(fs::is_symlink(folder / "link"));
}

TEST(AtomicFile, LeavesPipesAndDevicesInPlace) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", folder / "link");
  for (const char* name : {"pipe", "link"}) {
    expect_error(ExitCode::kIoError, {(folder / name).native(), "is a device, pipe or socket"},
                 [&] { write_text_file(folder / name, "x"); });
  }
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(folder.names(), (std::set<std::string>{"link", "pipe"}));
}

TEST(AtomicFile, NamesAFolderThatIsMissingOrInTheWay) {
  const TestFolder folder;
  expect_error(ExitCode::kIoError, {(folder / "no/file").native(), "cannot create", "No such file"},
               [&] { AtomicFile file(folder / "no/file"); });
  create_folder(folder / "taken");
  expect_error(ExitCode::kIoError, {"taken", "rename failed", "directory"},
               [&] { write_text_file(folder / "taken", "x"); });
  EXPECT_EQ(folder.names(), std::set<std::string>{"taken"});
}

TEST(AtomicFile, LeavesNothingBehindAtTheFileSizeLimit) {
  const TestFolder folder;
  folder.write("file", "old");
  EXPECT_EQ(run_in_child([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit = {10'000, 10'000};
              EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
              expect_error(ExitCode::kIoError, {(folder / "file").native(), "write failed", "File too large"},
                           [&] { write_text_file(folder / "file", std::string(50'000, 'x')); });
              return 0;
            }),
            0);
  EXPECT_EQ(folder.names(), std::set<std::string>{"file"});
  EXPECT_EQ(read_text_file(folder / "file"), "old");
}

// Mounts a private tmpfs with `options` over `folder`; false if the permission is missing.
bool mount_tmpfs(const fs::path& folder, const char* options, unsigned long flags = 0) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("tmpfs", folder.c_str(), "tmpfs", flags, options) == 0;
}

TEST(AtomicFile, SaysThatTheDiskIsFull) {
  const TestFolder folder;
  const int code = run_in_child([&] {
    if (!mount_tmpfs(folder.path(), "size=64k")) return kSkipped;
    folder.write("file", "old");
    expect_error(ExitCode::kIoError, {(folder / "file").native(), "No space left on device", "df -i"},
                 [&] { write_text_file(folder / "file", std::string(1'000'000, 'x')); });
    EXPECT_EQ(folder.names(), std::set<std::string>{"file"});
    EXPECT_EQ(read_text_file(folder / "file"), "old");
    return 0;
  });
  if (code == kSkipped) GTEST_SKIP() << "no permission to mount a small file system";
  EXPECT_EQ(code, 0);
}

TEST(AtomicFile, SaysThatTheFileSystemIsReadOnly) {
  const TestFolder folder;
  const int code = run_in_child([&] {
    if (!mount_tmpfs(folder.path(), "size=64k", MS_RDONLY)) return kSkipped;
    expect_error(ExitCode::kIoError, {(folder / "file").native(), "cannot create", "Read-only file system"},
                 [&] { write_text_file(folder / "file", "x"); });
    expect_error(ExitCode::kIoError,
                 {(folder / "a/b").native(), "cannot create the folder", "Read-only file system"},
                 [&] { create_folder(folder / "a/b"); });
    return 0;
  });
  if (code == kSkipped) GTEST_SKIP() << "no permission to mount a small file system";
  EXPECT_EQ(code, 0);
}

TEST(CreateFolder, MakesParentsAndRefusesAFileInTheWay) {
  const TestFolder folder;
  create_folder(folder / "a/ü b/c");
  create_folder(folder / "a/ü b/c");
  EXPECT_TRUE(fs::is_directory(folder / "a/ü b/c"));
  folder.write("file", "x");
  expect_error(ExitCode::kIoError, {(folder / "file").native(), "cannot create the folder"},
               [&] { create_folder(folder / "file"); });
  expect_error(ExitCode::kIoError, {(folder / "file/sub").native(), "cannot create the folder"},
               [&] { create_folder(folder / "file/sub"); });
}

TEST(RemoveAbandonedFiles, RemovesThoseOfKilledProcessesOnly) {
  const TestFolder folder;
  const fs::path target = folder / "a.tokens";
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(target);
    file.write("half");
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const std::string abandoned = fmt::format(".a.tokens.tmp-{}-", child);
  AtomicFile living(target);
  living.write("whole");
  folder.write(".b.json.tmp-1-1", "another kind");
  folder.write(".a.tokens.tmp-1-x", "another name");
  folder.write("a.tokens.tmp-1-1", "not hidden");
  fs::create_directory(folder / ".c.tokens.tmp-1-1");
  fs::create_symlink("nowhere", folder / ".d.tokens.tmp-1-1");
  const std::set<std::string> before = folder.names();
  ASSERT_EQ(before.size(), 7u) << testing::PrintToString(before);

  EXPECT_EQ(remove_abandoned_files(folder.path(), ".tokens"), 1);
  for (const std::string& name : before) {
    EXPECT_EQ(folder.names().count(name), name.starts_with(abandoned) ? 0u : 1u) << name;
  }
  living.commit();
  EXPECT_EQ(read_text_file(target), "whole");
  EXPECT_EQ(remove_abandoned_files(folder.path(), ".tokens"), 0);
  EXPECT_EQ(remove_abandoned_files(folder / "absent", ".tokens"), 0);
}

// Writers and removers run concurrently: no writer's file may vanish.
TEST(RemoveAbandonedFiles, DoesNotDisturbThoseWhoWrite) {
  const TestFolder folder;
  std::atomic<bool> done = false;
  std::thread remover([&] {
    while (!done) remove_abandoned_files(folder.path(), ".tokens");
  });
  for (int i = 0; i < 300; ++i) {
    AtomicFile file(folder / "x.tokens");
    file.write(std::to_string(i));
    EXPECT_NO_THROW(file.commit());
  }
  done = true;
  remover.join();
  EXPECT_EQ(read_text_file(folder / "x.tokens"), "299");
}

}  // namespace
}  // namespace tessera
