// Downloads by several processes, by processes that are killed, and to disks that are full or read-only.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "expect_error.h"
#include "hub/hub.h"
#include "io/file.h"
#include "support/web/hub_server.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string random_text(size_t size) {
  std::minstd_rand random(7);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() >> 8);
  return text;
}

// A separate file system of 3 MB.
class SmallDisk {
 public:
  SmallDisk() { is_mounted_ = ::mount("tmpfs", path().c_str(), "tmpfs", 0, "size=3m") == 0; }
  ~SmallDisk() {
    if (is_mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }
  bool is_mounted() const { return is_mounted_; }
  const fs::path& path() const { return folder_.path(); }
  void make_read_only() const {
    ASSERT_EQ(::mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  }

 private:
  TestFolder folder_;
  bool is_mounted_ = false;
};

class HubDisk : public testing::Test {
 protected:
  HubDisk() {
    repo_.name.id = "org/tiny";
    repo_.files = {{"config.json", "{}"}, {"model.safetensors", weights_}};
    server_.add(repo_);
    settings_ = server_.settings(folder_ / "hub");
    settings_.range_bytes = 20'000;
  }
  fs::path resolve() { return resolve_model("org/tiny", ModelFiles::kAll, settings_); }
  fs::path incomplete() const {
    return settings_.cache / "models--org--tiny" / "blobs" / (sha256_of(weights_) + ".incomplete");
  }
  void expect_weights() { EXPECT_EQ(read_text_file(resolve() / "model.safetensors"), weights_); }
  void slow_down(int64_t bytes_per_second) {
    server_.set_hook([=](const HubServer::Request& request, HubServer::Reply* reply) {
      if (request.is_storage) reply->max_bytes_per_second = bytes_per_second;
    });
  }
  // Processes that download the model and exit with 0. All are forked before one of them starts: a thread of
  // the server that answers a first one could hold a lock of the allocator, which a second one would inherit.
  std::vector<pid_t> start_processes(int count) {
    int start[2];
    EXPECT_EQ(::pipe(start), 0);
    std::vector<pid_t> processes;
    for (int i = 0; i < count; ++i) {
      processes.push_back(::fork());
      if (processes.back() == 0) run_process(start);
    }
    ::close(start[0]);
    ::close(start[1]);
    return processes;
  }
  // start: a pipe that ends when the process is to start.
  [[noreturn]] void run_process(const int (&start)[2]) {
    ::close(start[1]);
    char end;
    while (::read(start[0], &end, 1) < 0 && errno == EINTR) {
    }
    try {
      resolve();
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }

  const std::string weights_ = random_text(2'000'000);
  TestFolder folder_{memory_folder()};
  HubServer server_;
  HubServer::Repo repo_;
  HubSettings settings_;
};

TEST_F(HubDisk, SeveralProcessesDownloadOnce) {
  slow_down(200'000);
  for (const pid_t process : start_processes(3)) {
    int status = 0;
    ASSERT_EQ(::waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(server_.storage_bytes(), std::ssize(weights_));
  expect_weights();
}

TEST_F(HubDisk, AKilledProcessLeavesAFirstPartThatIsResumed) {
  slow_down(50'000);
  const pid_t process = start_processes(1).front();
  std::error_code not_yet;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline &&
         (!fs::exists(incomplete(), not_yet) || fs::file_size(incomplete(), not_yet) < 200'000))
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ::kill(process, SIGKILL);
  int status = 0;
  ::waitpid(process, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it has finished already";
  const std::string arrived = read_text_file(incomplete());
  ASSERT_LT(arrived.size(), weights_.size());
  EXPECT_TRUE(weights_.starts_with(arrived));
  server_.set_hook({});
  const size_t before = server_.requests().size();
  expect_weights();
  int64_t first = std::ssize(weights_);
  const std::vector<HubServer::Request> requests = server_.requests();
  for (size_t i = before; i < requests.size(); ++i) {
    if (requests[i].is_storage)
      first = std::min<int64_t>(first, std::stoll(requests[i].header("range").substr(6)));
  }
  EXPECT_EQ(first, std::ssize(arrived));
}

TEST_F(HubDisk, ThatIsTooSmallIsToldBeforeAnythingIsDownloaded) {
  const SmallDisk disk;
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting a file system is not permitted here";
  write_text_file(disk.path() / "other", std::string(1'500'000, 'x'));
  settings_.cache = disk.path() / "hub";
  expect_error(ExitCode::kIoError,
               {"org/tiny takes 1.91 MiB on disk, only", "set HF_HOME to a folder on another disk"},
               [&] { resolve(); });
  EXPECT_EQ(server_.storage_bytes(), 0);
}

TEST_F(HubDisk, ThatFillsUpKeepsWhatHasArrived) {
  const SmallDisk disk;
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting a file system is not permitted here";
  settings_.cache = disk.path() / "hub";
  settings_.connections = 1;
  const fs::path other = disk.path() / "other";
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply*) {
    if (request.is_storage && !fs::exists(other)) write_text_file(other, std::string(1'500'000, 'x'));
  });
  expect_error(ExitCode::kIoError,
               {incomplete().string(), "No space left on device",
                "what has arrived stays, and the same command goes on"},
               [&] { resolve(); });
  const std::string arrived = read_text_file(incomplete());
  EXPECT_GT(arrived.size(), 100'000U);
  EXPECT_TRUE(weights_.starts_with(arrived));
  fs::remove(other);
  server_.set_hook({});
  const int64_t before = server_.storage_bytes();
  expect_weights();
  EXPECT_EQ(server_.storage_bytes() - before, std::ssize(weights_) - std::ssize(arrived));
}

TEST_F(HubDisk, ThatIsReadOnlyServesWhatItHas) {
  const SmallDisk disk;
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting a file system is not permitted here";
  settings_.cache = disk.path() / "hub";
  resolve_model("org/tiny", ModelFiles::kNoWeights, settings_);
  disk.make_read_only();
  EXPECT_TRUE(fs::exists(resolve_model("org/tiny", ModelFiles::kNoWeights, settings_) / "config.json"));
  expect_error(ExitCode::kIoError,
               {disk.path().string(), "Read-only file system", "HF_HOME or HF_HUB_CACHE sets another folder"},
               [&] { resolve(); });
}

}  // namespace
}  // namespace tessera
