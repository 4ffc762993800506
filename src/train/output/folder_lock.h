// The lock on a run's output_dir, which outlives the folder.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/unique_fd.h"

namespace tessera {

// Holds the lock for its lifetime: a second run in the same folder is refused on this machine. If the folder
// is removed or renamed, it is created and locked again within a fraction of a second, with a warning. NFS
// and Lustre lock files for all machines, but folders for their own only.
class FolderLock {
 public:
  // Creates the folder. kIoError if it cannot be written, kTryAgain if another run holds the lock.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  void take();
  bool is_in_place() const;
  void watch();

  const std::filesystem::path folder_;  // absolute
  std::filesystem::path real_;          // without links, which lead nowhere once it is removed
  UniqueFd fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread watcher_;
};

}  // namespace tessera
