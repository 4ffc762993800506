#include "train/output/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "io/absolute_path.h"
#include "io/synced_folder.h"
#include "platform/background_thread.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kLook{200};

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) : folder_(absolute_path(folder)) {
  take();
  watcher_ = start_background_thread([this] { watch(); });
}

FolderLock::~FolderLock() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  watcher_.join();
}

void FolderLock::take() {
  std::error_code error;
  if (!real_.empty() && !std::filesystem::exists(folder_, error)) create_synced_folder(real_);
  create_synced_folder(folder_);
  real_ = std::filesystem::canonical(folder_, error);
  UniqueFd fd(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) fail_errno(ExitCode::kIoError, errno, fmt::format("cannot open {}", folder_.string()));
  // Not every file system has locks.
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    fail(ExitCode::kTryAgain,
         "output_dir {}: another run is writing to it; wait for it or choose another folder",
         folder_.string());
  }
  fd_ = std::move(fd);
}

bool FolderLock::is_in_place() const {
  struct stat held = {}, named = {};
  if (fstat(fd_.get(), &held) != 0) return true;
  if (stat(folder_.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

void FolderLock::watch() {
  std::string told;
  for (std::unique_lock lock(mutex_); !changed_.wait_for(lock, kLook, [this] { return ends_; });) {
    if (is_in_place()) continue;
    std::string outcome = "it is created again, and what the run wrote before is not there";
    try {
      take();
    } catch (const Error& error) {
      outcome = error.what();
    }
    if (outcome == told) continue;
    log_warning("output_dir {} was removed or renamed while this run writes to it: {}", folder_.string(),
                outcome);
    told = std::move(outcome);
  }
}

}  // namespace tessera
